-- Records that could not be used: where they were and why, never their content.

-- migrate:up

CREATE TABLE IF NOT EXISTS dead_letters
(
    _topic LowCardinality(String),
    _partition UInt32,
    _offset UInt64 CODEC(Delta, ZSTD(1)),
    _event UInt16,
    _producer LowCardinality(Nullable(String)),
    _boot LowCardinality(Nullable(String)),
    _seq Nullable(UInt64) CODEC(Delta, ZSTD(1)),
    _logged_at DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    origin_topic LowCardinality(String),
    origin_partition UInt64,
    origin_offset UInt64,
    ts DateTime64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    component LowCardinality(String),
    kind LowCardinality(String),
    reason String CODEC(ZSTD(3)),
    schema_header LowCardinality(Nullable(String)),
    size_bytes UInt64,
    sha256 String CODEC(ZSTD(3))
)
ENGINE = MergeTree
PARTITION BY toDate(ts)
ORDER BY (origin_topic, origin_partition, origin_offset)
TTL toDateTime(ts) + INTERVAL 90 DAY;

-- migrate:down

DROP TABLE IF EXISTS dead_letters SYNC;
