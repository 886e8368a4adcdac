-- Dead letters of the request topics while the intent was open. They hold no content: whose they are is
-- unknown.
SELECT
    origin_topic,
    origin_partition,
    origin_offset,
    any(kind) AS kind,
    any(reason) AS reason,
    count() AS letters,
    toUnixTimestamp64Milli(min(ts)) AS at_ms
FROM dead_letters
WHERE origin_topic IN ('fleet.decisions', 'fleet.outcomes')
    AND ts BETWEEN fromUnixTimestamp64Milli({from_ms:Int64}) AND fromUnixTimestamp64Milli({upto_ms:Int64})
GROUP BY origin_topic, origin_partition, origin_offset
ORDER BY at_ms
LIMIT 100
