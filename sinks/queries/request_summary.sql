-- The closed intent in one row.
SELECT
    * EXCEPT (started_at, ended_at),
    toUnixTimestamp64Milli(started_at) AS started_at_ms,
    toUnixTimestamp64Milli(ended_at) AS ended_at_ms
FROM intents
WHERE intent_id = {intent:String} AND tenant = {tenant:String}
