-- What analysts read: one row a decision, one row an intent, goodput by the minute.

-- migrate:up

-- One row a decision. A real outcome beats an inferred lost one; of the same event logged twice one stays.
CREATE VIEW IF NOT EXISTS outcomes AS
SELECT *
FROM outcomes_raw
ORDER BY decision_id, inferred, ts, _topic, _partition, _offset, _event
LIMIT 1 BY decision_id;

CREATE VIEW IF NOT EXISTS decisions AS
SELECT *
FROM decisions_raw
ORDER BY decision_id, ts, _topic, _partition, _offset, _event
LIMIT 1 BY decision_id;

-- One row a closed intent: ok if any attempt was, else as the last attempt ended. Everything runs from the
-- first attempt's clock, also where a later attempt's router did not know of it. Unmeasured stays NULL.
CREATE VIEW IF NOT EXISTS intents AS
SELECT
    tenant,
    intent_id,
    first_started_at AS started_at,
    ended_at,
    attempts,
    inferred,
    last.1 AS cause,
    last.2 AS rule,
    last.3 AS service_class,
    last.4 AS pool,
    entry_region,
    last.5 AS region,
    last.6 AS instance,
    last.7 AS residency,
    last.8 + late_ms AS ttft_ms,
    last.9 AS tpot_ms,
    last.10 + late_ms AS e2e_ms,
    last.11 AS prompt_tokens,
    last.12 AS cached_tokens,
    last.13 AS output_tokens,
    wasted_tokens,
    last.14 AS ttft_slo_ms,
    last.15 AS tpot_slo_ms,
    last.16 AND ifNull(ttft_ms <= ttft_slo_ms, true) AS within_slo,
    intent_inferred
FROM
(
    SELECT
        tenant,
        intent_id,
        min(intent_started_at) AS first_started_at,
        max(ts) AS ended_at,
        count() AS attempts,
        max(inferred) AS inferred,
        max(intent_inferred) AS intent_inferred,
        argMin(entry_region, (attempt, ts)) AS entry_region,
        sum(wasted_tokens) AS wasted_tokens,
        argMax(
            (
                cause, rule, service_class, pool, region, instance, residency, ttft_ms, tpot_ms, e2e_ms,
                prompt_tokens, cached_tokens, output_tokens, ttft_slo_ms, tpot_slo_ms, within_slo,
                intent_started_at
            ),
            (cause = 'ok', attempt, ts)
        ) AS last,
        toUnixTimestamp64Milli(last.17) - toUnixTimestamp64Milli(first_started_at) AS late_ms
    FROM outcomes
    GROUP BY tenant, intent_id
);

-- By the minute in which intents began; tokens count for the minute of their intent.
CREATE VIEW IF NOT EXISTS goodput_1m AS
SELECT
    toStartOfMinute(started_at) AS minute,
    service_class,
    tenant,
    pool,
    entry_region,
    region,
    count() AS offered,
    countIf(cause = 'ok') AS ok,
    countIf(within_slo) AS good,
    countIf(cause = 'shed') AS shed,
    countIf(cause = 'timeout') AS timeout,
    countIf(cause = 'cancelled') AS cancelled,
    countIf(cause = 'failed') AS failed,
    countIf(cause = 'lost') AS lost,
    sum(i.output_tokens) AS output_tokens,
    sumIf(i.output_tokens, within_slo) AS good_tokens,
    sum(i.wasted_tokens) AS wasted_tokens
FROM intents AS i
GROUP BY minute, service_class, tenant, pool, entry_region, region;

-- migrate:down

DROP VIEW IF EXISTS goodput_1m SYNC;
DROP VIEW IF EXISTS intents SYNC;
DROP VIEW IF EXISTS decisions SYNC;
DROP VIEW IF EXISTS outcomes SYNC;
