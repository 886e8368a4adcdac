-- The history of the compacted topics: one row a write.

-- migrate:up

CREATE TABLE IF NOT EXISTS instances
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    instance LowCardinality(String),
    boot LowCardinality(String),
    boot_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    engine LowCardinality(String),
    region LowCardinality(String),
    pools Array(LowCardinality(String)),
    state LowCardinality(String),
    sampled_at Nullable(DateTime64(3, 'UTC')),
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
    prefill_tokens_per_s Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prefill_tokens_per_s_quality LowCardinality(String),
    prefill_tokens_per_s_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    decode_tokens_per_s Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    decode_tokens_per_s_quality LowCardinality(String),
    decode_tokens_per_s_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prefix_hit_ratio Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prefix_hit_ratio_quality LowCardinality(String),
    prefix_hit_ratio_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    preemptions_per_s Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    preemptions_per_s_quality LowCardinality(String),
    preemptions_per_s_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    windows String CODEC(ZSTD(3)),
    late_events UInt64
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (region, instance, ts)
TTL toDateTime(ts) + INTERVAL 14 DAY;

CREATE TABLE IF NOT EXISTS regions
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    region LowCardinality(String),
    pool LowCardinality(String),
    ready_endpoints UInt64,
    known_endpoints UInt64,
    requests_running Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    requests_running_quality LowCardinality(String),
    requests_running_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    requests_waiting Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    requests_waiting_quality LowCardinality(String),
    requests_waiting_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    kv_usage_ratio Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    kv_usage_ratio_quality LowCardinality(String),
    kv_usage_ratio_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    prefill_tokens_per_s Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    prefill_tokens_per_s_quality LowCardinality(String),
    prefill_tokens_per_s_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    decode_tokens_per_s Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    decode_tokens_per_s_quality LowCardinality(String),
    decode_tokens_per_s_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    cap_work_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    cap_work_tokens_quality LowCardinality(String),
    cap_work_tokens_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    leased_work_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    leased_work_tokens_quality LowCardinality(String),
    leased_work_tokens_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    headroom_work_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    headroom_work_tokens_quality LowCardinality(String),
    headroom_work_tokens_age_ms Nullable(Float64) CODEC(ZSTD(1)),
    windows String CODEC(ZSTD(3))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (pool, region, ts)
TTL toDateTime(ts) + INTERVAL 30 DAY;

CREATE TABLE IF NOT EXISTS quotas
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    region LowCardinality(String),
    pool LowCardinality(String),
    cap_work_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    granted_work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    exposed_work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    classes String CODEC(ZSTD(3)),
    reason String CODEC(ZSTD(3))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (pool, region, ts)
TTL toDateTime(ts) + INTERVAL 30 DAY;

CREATE TABLE IF NOT EXISTS leases
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    region LowCardinality(String),
    pool LowCardinality(String),
    service_class LowCardinality(String),
    holder LowCardinality(String),
    holder_boot LowCardinality(String),
    request_seq UInt64,
    lease_id String CODEC(ZSTD(3)),
    work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    exposed_work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    floor_work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    duration_ms Float64 CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (pool, region, service_class, holder, ts)
TTL toDateTime(ts) + INTERVAL 14 DAY;

CREATE TABLE IF NOT EXISTS routers
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    router LowCardinality(String),
    boot LowCardinality(String),
    boot_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    entry_region LowCardinality(String),
    url String CODEC(ZSTD(3)),
    mode LowCardinality(String),
    in_flight_requests UInt64,
    demands String CODEC(ZSTD(3))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (router, ts)
TTL toDateTime(ts) + INTERVAL 14 DAY;

CREATE TABLE IF NOT EXISTS policy_log
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    valid_for_ms Float64 CODEC(ZSTD(1)),
    epoch UInt64,
    version UInt64,
    scope LowCardinality(String),
    classes String CODEC(ZSTD(3)),
    default_class LowCardinality(Nullable(String)),
    residencies String CODEC(ZSTD(3)),
    caps String CODEC(ZSTD(3)),
    operations String CODEC(ZSTD(3)),
    switches_tokenpilot LowCardinality(String),
    switches_fleetmind LowCardinality(String),
    switches_slomax LowCardinality(String),
    author LowCardinality(String),
    tenant_residencies Map(String, String)
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (scope, ts);

-- migrate:down

DROP TABLE IF EXISTS policy_log SYNC;
DROP TABLE IF EXISTS routers SYNC;
DROP TABLE IF EXISTS leases SYNC;
DROP TABLE IF EXISTS quotas SYNC;
DROP TABLE IF EXISTS regions SYNC;
DROP TABLE IF EXISTS instances SYNC;
