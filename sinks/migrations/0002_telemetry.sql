-- What engines said of themselves: raw for three days, by the minute for ninety.

-- migrate:up

CREATE TABLE IF NOT EXISTS telemetry_raw
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    instance LowCardinality(String),
    boot LowCardinality(String),
    boot_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    engine LowCardinality(String),
    rank UInt16,
    region LowCardinality(String),
    pools Array(LowCardinality(String)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    reachable Bool,
    scrape_ms Nullable(Float64) CODEC(ZSTD(1)),
    requests_running Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    requests_running_quality LowCardinality(String),
    requests_running_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    requests_waiting Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    requests_waiting_quality LowCardinality(String),
    requests_waiting_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    kv_usage_ratio Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    kv_usage_ratio_quality LowCardinality(String),
    kv_usage_ratio_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    kv_capacity_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    kv_capacity_tokens_quality LowCardinality(String),
    kv_capacity_tokens_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    kv_block_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    kv_block_tokens_quality LowCardinality(String),
    kv_block_tokens_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prompt_tokens_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prompt_tokens_total_quality LowCardinality(String),
    prompt_tokens_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prompt_tokens_cached_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prompt_tokens_cached_total_quality LowCardinality(String),
    prompt_tokens_cached_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    generation_tokens_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    generation_tokens_total_quality LowCardinality(String),
    generation_tokens_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prefix_queries_tokens_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prefix_queries_tokens_total_quality LowCardinality(String),
    prefix_queries_tokens_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prefix_hits_tokens_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prefix_hits_tokens_total_quality LowCardinality(String),
    prefix_hits_tokens_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    preemptions_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    preemptions_total_quality LowCardinality(String),
    preemptions_total_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    requests_finished_total Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    requests_finished_total_quality LowCardinality(String),
    requests_finished_total_age_ms Nullable(Float64) CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (region, instance, rank, ts)
TTL toDateTime(ts) + INTERVAL 3 DAY;

-- upto: the highest _offset * 1024 + _event that went in, so that what a crash cut off can be added once.
CREATE TABLE IF NOT EXISTS telemetry_1m
(
    minute DateTime('UTC') CODEC(Delta, ZSTD(1)),
    region LowCardinality(String),
    instance LowCardinality(String),
    rank UInt16,
    _partition UInt32,
    engine SimpleAggregateFunction(any, LowCardinality(String)),
    samples SimpleAggregateFunction(sum, UInt64),
    reachable_samples SimpleAggregateFunction(sum, UInt64),
    requests_running_avg AggregateFunction(avg, Nullable(Float64)),
    requests_running_max SimpleAggregateFunction(max, Nullable(Float64)),
    requests_waiting_avg AggregateFunction(avg, Nullable(Float64)),
    requests_waiting_max SimpleAggregateFunction(max, Nullable(Float64)),
    kv_usage_ratio_avg AggregateFunction(avg, Nullable(Float64)),
    kv_usage_ratio_max SimpleAggregateFunction(max, Nullable(Float64)),
    upto SimpleAggregateFunction(max, UInt64)
)
ENGINE = AggregatingMergeTree
PARTITION BY toDate(minute)
ORDER BY (region, instance, rank, minute, _partition)
TTL minute + INTERVAL 90 DAY;

-- Only fresh readings count; where all were unknown the figures stay NULL.
-- queries/heal_telemetry_1m.sql selects the same.
CREATE MATERIALIZED VIEW IF NOT EXISTS telemetry_1m_mv TO telemetry_1m AS
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
GROUP BY minute, region, instance, rank, _partition;

CREATE VIEW IF NOT EXISTS telemetry_minutes AS
SELECT
    minute,
    region,
    instance,
    rank,
    any(engine) AS engine,
    sum(samples) AS samples,
    sum(reachable_samples) AS reachable_samples,
    avgMerge(requests_running_avg) AS requests_running_avg,
    max(requests_running_max) AS requests_running_max,
    avgMerge(requests_waiting_avg) AS requests_waiting_avg,
    max(requests_waiting_max) AS requests_waiting_max,
    avgMerge(kv_usage_ratio_avg) AS kv_usage_ratio_avg,
    max(kv_usage_ratio_max) AS kv_usage_ratio_max
FROM telemetry_1m
GROUP BY minute, region, instance, rank;

-- migrate:down

DROP VIEW IF EXISTS telemetry_minutes SYNC;
DROP VIEW IF EXISTS telemetry_1m_mv SYNC;
DROP TABLE IF EXISTS telemetry_1m SYNC;
DROP TABLE IF EXISTS telemetry_raw SYNC;
