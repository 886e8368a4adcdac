-- Adds to the rollup what the raw table holds beyond it: an insert that was cut off between the two.
INSERT INTO telemetry_1m
SELECT
    toStartOfMinute(ts) AS minute,
    region,
    instance,
    rank,
    _partition,
    any(engine) AS engine,
    count() AS samples,
    countIf(reachable) AS reachable_samples,
    avgState(if(requests_running_quality = 'fresh', requests_running, NULL)) AS requests_running_avg,
    max(if(requests_running_quality = 'fresh', requests_running, NULL)) AS requests_running_max,
    avgState(if(requests_waiting_quality = 'fresh', requests_waiting, NULL)) AS requests_waiting_avg,
    max(if(requests_waiting_quality = 'fresh', requests_waiting, NULL)) AS requests_waiting_max,
    avgState(if(kv_usage_ratio_quality = 'fresh', kv_usage_ratio, NULL)) AS kv_usage_ratio_avg,
    max(if(kv_usage_ratio_quality = 'fresh', kv_usage_ratio, NULL)) AS kv_usage_ratio_max,
    max(_offset * 1024 + _event) AS upto
FROM telemetry_raw
LEFT JOIN
(
    SELECT _partition, max(upto) AS rolled_up, 1 AS known
    FROM telemetry_1m
    GROUP BY _partition
) AS reached USING (_partition)
WHERE known = 0 OR _offset * 1024 + _event > rolled_up
GROUP BY minute, region, instance, rank, _partition
SETTINGS max_threads = 1, max_insert_threads = 1
