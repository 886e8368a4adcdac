-- What routers decided and how each attempt ended: one row an event, as logged.

-- migrate:up

CREATE TABLE IF NOT EXISTS outcomes_raw
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    decision_id String CODEC(ZSTD(3)),
    intent_id String CODEC(ZSTD(3)),
    intent_inferred Bool,
    attempt UInt16,
    router LowCardinality(String),
    router_boot LowCardinality(String),
    tenant LowCardinality(String),
    service_class LowCardinality(String),
    pool LowCardinality(String),
    entry_region LowCardinality(String),
    residency LowCardinality(Nullable(String)),
    region LowCardinality(Nullable(String)),
    instance LowCardinality(Nullable(String)),
    instance_boot LowCardinality(Nullable(String)),
    cause LowCardinality(String),
    rule Nullable(String) CODEC(ZSTD(3)),
    inferred Bool,
    status Nullable(UInt16),
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    intent_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    first_token_at Nullable(DateTime64(3, 'UTC')),
    queue_ms Nullable(Float64) CODEC(ZSTD(1)),
    ttft_ms Nullable(Float64) CODEC(ZSTD(1)),
    tpot_ms Nullable(Float64) CODEC(ZSTD(1)),
    e2e_ms Nullable(Float64) CODEC(ZSTD(1)),
    prompt_tokens Nullable(UInt32),
    cached_tokens Nullable(UInt32),
    output_tokens Nullable(UInt32),
    wasted_tokens Nullable(UInt32),
    ttft_slo_ms Float64 CODEC(ZSTD(1)),
    tpot_slo_ms Float64 CODEC(ZSTD(1)),
    deadline_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    within_slo Bool,
    predicted_ttft_ms Nullable(Float64) CODEC(ZSTD(1)),
    predicted_tpot_ms Nullable(Float64) CODEC(ZSTD(1)),
    work_tokens Nullable(Float64) CODEC(Gorilla, ZSTD(1)),
    INDEX by_intent_id intent_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_decision_id decision_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (pool, service_class, ts)
TTL toDateTime(ts) + INTERVAL 90 DAY;

CREATE TABLE IF NOT EXISTS decisions_raw
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    decision_id String CODEC(ZSTD(3)),
    intent_id String CODEC(ZSTD(3)),
    intent_inferred Bool,
    attempt UInt16,
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    intent_started_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    deadline_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    router LowCardinality(String),
    router_boot LowCardinality(String),
    tenant LowCardinality(String),
    service_class LowCardinality(String),
    pool LowCardinality(String),
    entry_region LowCardinality(String),
    residency LowCardinality(Nullable(String)),
    verdict LowCardinality(String),
    rule Nullable(String) CODEC(ZSTD(3)),
    region LowCardinality(Nullable(String)),
    instance LowCardinality(Nullable(String)),
    instance_boot LowCardinality(Nullable(String)),
    lease_id Nullable(String) CODEC(ZSTD(3)),
    estimated_prompt_tokens Nullable(UInt32),
    ttft_slo_ms Float64 CODEC(ZSTD(1)),
    tpot_slo_ms Float64 CODEC(ZSTD(1)),
    predicted_ttft_ms Nullable(Float64) CODEC(ZSTD(1)),
    predicted_tpot_ms Nullable(Float64) CODEC(ZSTD(1)),
    work_tokens Float64 CODEC(Gorilla, ZSTD(1)),
    input Nullable(String) CODEC(ZSTD(3)),
    INDEX by_intent_id intent_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX by_decision_id decision_id TYPE bloom_filter(0.01) GRANULARITY 1
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (pool, service_class, ts)
TTL toDateTime(ts) + INTERVAL 90 DAY;

-- migrate:down

DROP TABLE IF EXISTS decisions_raw SYNC;
DROP TABLE IF EXISTS outcomes_raw SYNC;
