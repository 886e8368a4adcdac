-- KV tokens, quarantine, service rate at the knee, ceiling and predicted wait of the capacity tables.

-- migrate:up

ALTER TABLE instances
    ADD COLUMN IF NOT EXISTS kv_used_tokens Nullable(Float64) AFTER preemptions_per_s_age_ms,
    ADD COLUMN IF NOT EXISTS kv_used_tokens_quality LowCardinality(String) AFTER kv_used_tokens,
    ADD COLUMN IF NOT EXISTS kv_used_tokens_age_ms Nullable(Float64) AFTER kv_used_tokens_quality,
    ADD COLUMN IF NOT EXISTS kv_free_tokens Nullable(Float64) AFTER kv_used_tokens_age_ms,
    ADD COLUMN IF NOT EXISTS kv_free_tokens_quality LowCardinality(String) AFTER kv_free_tokens,
    ADD COLUMN IF NOT EXISTS kv_free_tokens_age_ms Nullable(Float64) AFTER kv_free_tokens_quality,
    ADD COLUMN IF NOT EXISTS quarantined Bool AFTER kv_free_tokens_age_ms;

ALTER TABLE regions
    ADD COLUMN IF NOT EXISTS kv_used_tokens Nullable(Float64) AFTER decode_tokens_per_s_age_ms,
    ADD COLUMN IF NOT EXISTS kv_used_tokens_quality LowCardinality(String) AFTER kv_used_tokens,
    ADD COLUMN IF NOT EXISTS kv_used_tokens_age_ms Nullable(Float64) AFTER kv_used_tokens_quality,
    ADD COLUMN IF NOT EXISTS kv_free_tokens Nullable(Float64) AFTER kv_used_tokens_age_ms,
    ADD COLUMN IF NOT EXISTS kv_free_tokens_quality LowCardinality(String) AFTER kv_free_tokens,
    ADD COLUMN IF NOT EXISTS kv_free_tokens_age_ms Nullable(Float64) AFTER kv_free_tokens_quality,
    ADD COLUMN IF NOT EXISTS staleness_ms Nullable(Float64) AFTER kv_free_tokens_age_ms,
    ADD COLUMN IF NOT EXISTS staleness_ms_quality LowCardinality(String) AFTER staleness_ms,
    ADD COLUMN IF NOT EXISTS staleness_ms_age_ms Nullable(Float64) AFTER staleness_ms_quality,
    ADD COLUMN IF NOT EXISTS knee_tokens_per_s Nullable(Float64) AFTER staleness_ms_age_ms,
    ADD COLUMN IF NOT EXISTS knee_tokens_per_s_quality LowCardinality(String) AFTER knee_tokens_per_s,
    ADD COLUMN IF NOT EXISTS knee_tokens_per_s_age_ms Nullable(Float64) AFTER knee_tokens_per_s_quality,
    ADD COLUMN IF NOT EXISTS ceiling_tokens_per_s Nullable(Float64) AFTER knee_tokens_per_s_age_ms,
    ADD COLUMN IF NOT EXISTS ceiling_tokens_per_s_quality LowCardinality(String) AFTER ceiling_tokens_per_s,
    ADD COLUMN IF NOT EXISTS ceiling_tokens_per_s_age_ms Nullable(Float64) AFTER ceiling_tokens_per_s_quality,
    ADD COLUMN IF NOT EXISTS predicted_wait_ms Nullable(Float64) AFTER ceiling_tokens_per_s_age_ms,
    ADD COLUMN IF NOT EXISTS predicted_wait_ms_quality LowCardinality(String) AFTER predicted_wait_ms,
    ADD COLUMN IF NOT EXISTS predicted_wait_ms_age_ms Nullable(Float64) AFTER predicted_wait_ms_quality;

-- migrate:down

ALTER TABLE regions
    DROP COLUMN IF EXISTS kv_used_tokens,
    DROP COLUMN IF EXISTS kv_used_tokens_quality,
    DROP COLUMN IF EXISTS kv_used_tokens_age_ms,
    DROP COLUMN IF EXISTS kv_free_tokens,
    DROP COLUMN IF EXISTS kv_free_tokens_quality,
    DROP COLUMN IF EXISTS kv_free_tokens_age_ms,
    DROP COLUMN IF EXISTS staleness_ms,
    DROP COLUMN IF EXISTS staleness_ms_quality,
    DROP COLUMN IF EXISTS staleness_ms_age_ms,
    DROP COLUMN IF EXISTS knee_tokens_per_s,
    DROP COLUMN IF EXISTS knee_tokens_per_s_quality,
    DROP COLUMN IF EXISTS knee_tokens_per_s_age_ms,
    DROP COLUMN IF EXISTS ceiling_tokens_per_s,
    DROP COLUMN IF EXISTS ceiling_tokens_per_s_quality,
    DROP COLUMN IF EXISTS ceiling_tokens_per_s_age_ms,
    DROP COLUMN IF EXISTS predicted_wait_ms,
    DROP COLUMN IF EXISTS predicted_wait_ms_quality,
    DROP COLUMN IF EXISTS predicted_wait_ms_age_ms;

ALTER TABLE instances
    DROP COLUMN IF EXISTS kv_used_tokens,
    DROP COLUMN IF EXISTS kv_used_tokens_quality,
    DROP COLUMN IF EXISTS kv_used_tokens_age_ms,
    DROP COLUMN IF EXISTS kv_free_tokens,
    DROP COLUMN IF EXISTS kv_free_tokens_quality,
    DROP COLUMN IF EXISTS kv_free_tokens_age_ms,
    DROP COLUMN IF EXISTS quarantined;
