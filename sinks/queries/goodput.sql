-- Goodput of the intents that began within the last {since} seconds, in intents and in tokens.
SELECT
    multiIf(
        {by:String} = 'class', toString(service_class),
        {by:String} = 'tenant', toString(tenant),
        {by:String} = 'region', toString(ifNull(region, '(none)')),
        'all'
    ) AS name,
    count() AS offered,
    countIf(cause = 'ok') AS ok,
    countIf(within_slo) AS good,
    countIf(cause = 'timeout') AS timeout,
    countIf(cause = 'cancelled') AS cancelled,
    countIf(cause = 'failed') AS failed,
    countIf(cause = 'shed') AS shed,
    countIf(cause = 'lost') AS lost,
    good / offered AS compliance,
    sum(attempts) AS attempts,
    sum(output_tokens) AS tokens,
    sumIf(output_tokens, within_slo) AS good_tokens,
    sum(wasted_tokens) AS wasted,
    good / {since:UInt32} AS goodput_intents_per_s,
    ifNull(good_tokens, 0) / {since:UInt32} AS goodput_tokens_per_s,
    quantileExact(0.5)(ttft_ms) AS ttft_p50_ms,
    quantileExact(0.9)(ttft_ms) AS ttft_p90_ms,
    quantileExact(0.99)(ttft_ms) AS ttft_p99_ms,
    quantileExact(0.5)(tpot_ms) AS tpot_p50_ms,
    quantileExact(0.9)(tpot_ms) AS tpot_p90_ms,
    quantileExact(0.99)(tpot_ms) AS tpot_p99_ms
FROM intents
WHERE started_at >= now64(3) - toIntervalSecond({since:UInt32})
GROUP BY name
ORDER BY name
