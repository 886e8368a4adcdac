-- All outcomes of an intent as logged, duplicates and inferred ones included.
SELECT
    * EXCEPT
    (
        _topic, _producer, _boot, _seq, _event, _logged_at, ts, intent_started_at, started_at,
        first_token_at, deadline_at
    ),
    toUnixTimestamp64Milli(ts) AS at_ms,
    toUnixTimestamp64Milli(intent_started_at) AS intent_started_at_ms,
    toUnixTimestamp64Milli(started_at) AS started_at_ms,
    toUnixTimestamp64Milli(first_token_at) AS first_token_at_ms,
    toUnixTimestamp64Milli(deadline_at) AS deadline_at_ms,
    concat(_producer, '/', _boot, '/', toString(_seq), '#', toString(_event)) AS envelope
FROM outcomes_raw
WHERE intent_id = {intent:String} AND tenant = {tenant:String}
ORDER BY ts, attempt, _partition, _offset, _event
