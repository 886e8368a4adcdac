-- Outcomes stored since a time, counted for each decision: a page of them, after {after} in order.
SELECT
    decision_id,
    intent_id,
    countIf(NOT inferred) AS outcomes,
    countIf(inferred) AS inferred_lost,
    argMax(cause, (NOT inferred, ts)) AS cause,
    max(attempt) AS last_attempt
FROM outcomes_raw
WHERE ts >= fromUnixTimestamp64Milli({from_ms:Int64})
    AND decision_id > {after:String}
GROUP BY decision_id, intent_id
ORDER BY decision_id, intent_id
LIMIT {page:UInt32}
