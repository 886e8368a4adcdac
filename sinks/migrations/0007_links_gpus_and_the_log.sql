-- Links of regions; GPU health, engines' own latencies, work in flight and KV events of instances.

-- migrate:up

ALTER TABLE instances
    ADD COLUMN IF NOT EXISTS gpu_health_state LowCardinality(String) AFTER late_events,
    ADD COLUMN IF NOT EXISTS gpu_health_quality LowCardinality(String) AFTER gpu_health_state,
    ADD COLUMN IF NOT EXISTS gpu_health_age_ms Nullable(Float64) AFTER gpu_health_quality,
    ADD COLUMN IF NOT EXISTS gpu_health_reasons Array(LowCardinality(String)) AFTER gpu_health_age_ms,
    ADD COLUMN IF NOT EXISTS engine_windows String AFTER gpu_health_reasons,
    ADD COLUMN IF NOT EXISTS requests_in_flight Nullable(Float64) AFTER engine_windows,
    ADD COLUMN IF NOT EXISTS requests_in_flight_quality LowCardinality(String) AFTER requests_in_flight,
    ADD COLUMN IF NOT EXISTS requests_in_flight_age_ms Nullable(Float64) AFTER requests_in_flight_quality,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight Nullable(Float64) AFTER requests_in_flight_age_ms,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight_quality LowCardinality(String) AFTER work_tokens_in_flight,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight_age_ms Nullable(Float64) AFTER work_tokens_in_flight_quality,
    ADD COLUMN IF NOT EXISTS kv_events_at Nullable(DateTime64(3, 'UTC')) AFTER work_tokens_in_flight_age_ms,
    ADD COLUMN IF NOT EXISTS kv_evicted_blocks_per_s Nullable(Float64) AFTER kv_events_at,
    ADD COLUMN IF NOT EXISTS kv_evicted_blocks_per_s_quality LowCardinality(String) AFTER kv_evicted_blocks_per_s,
    ADD COLUMN IF NOT EXISTS kv_evicted_blocks_per_s_age_ms Nullable(Float64) AFTER kv_evicted_blocks_per_s_quality;

ALTER TABLE regions
    ADD COLUMN IF NOT EXISTS requests_in_flight Nullable(Float64) AFTER windows,
    ADD COLUMN IF NOT EXISTS requests_in_flight_quality LowCardinality(String) AFTER requests_in_flight,
    ADD COLUMN IF NOT EXISTS requests_in_flight_age_ms Nullable(Float64) AFTER requests_in_flight_quality,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight Nullable(Float64) AFTER requests_in_flight_age_ms,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight_quality LowCardinality(String) AFTER work_tokens_in_flight,
    ADD COLUMN IF NOT EXISTS work_tokens_in_flight_age_ms Nullable(Float64) AFTER work_tokens_in_flight_quality,
    ADD COLUMN IF NOT EXISTS links String AFTER work_tokens_in_flight_age_ms;

-- migrate:down

ALTER TABLE regions
    DROP COLUMN IF EXISTS requests_in_flight,
    DROP COLUMN IF EXISTS requests_in_flight_quality,
    DROP COLUMN IF EXISTS requests_in_flight_age_ms,
    DROP COLUMN IF EXISTS work_tokens_in_flight,
    DROP COLUMN IF EXISTS work_tokens_in_flight_quality,
    DROP COLUMN IF EXISTS work_tokens_in_flight_age_ms,
    DROP COLUMN IF EXISTS links;

ALTER TABLE instances
    DROP COLUMN IF EXISTS gpu_health_state,
    DROP COLUMN IF EXISTS gpu_health_quality,
    DROP COLUMN IF EXISTS gpu_health_age_ms,
    DROP COLUMN IF EXISTS gpu_health_reasons,
    DROP COLUMN IF EXISTS engine_windows,
    DROP COLUMN IF EXISTS requests_in_flight,
    DROP COLUMN IF EXISTS requests_in_flight_quality,
    DROP COLUMN IF EXISTS requests_in_flight_age_ms,
    DROP COLUMN IF EXISTS work_tokens_in_flight,
    DROP COLUMN IF EXISTS work_tokens_in_flight_quality,
    DROP COLUMN IF EXISTS work_tokens_in_flight_age_ms,
    DROP COLUMN IF EXISTS kv_events_at,
    DROP COLUMN IF EXISTS kv_evicted_blocks_per_s,
    DROP COLUMN IF EXISTS kv_evicted_blocks_per_s_quality,
    DROP COLUMN IF EXISTS kv_evicted_blocks_per_s_age_ms;
