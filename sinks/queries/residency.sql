-- Dispatched decisions against the policy in force at their time, and {grace_ms} before it: routers hear of a
-- change a little later. A decision is wrong where neither allows it. The tenant's forced residency counts
-- over the request's; a residency that no policy names allows nothing.
WITH policies AS
(
    SELECT
        1 AS one,
        ts AS since,
        tenant_residencies,
        JSONExtract(residencies, 'Array(Tuple(name String, allowed_regions Array(String)))') AS rules
    FROM policy_log
    WHERE scope = 'fleet'
),
judged AS
(
    SELECT
        d.decision_id AS decision_id,
        d.intent_id AS intent_id,
        d.tenant AS tenant,
        d.ts AS ts,
        ifNull(d.region, '') AS served_in,
        p.tenant_residencies[toString(d.tenant)] AS forced,
        q.tenant_residencies[toString(d.tenant)] AS forced_before,
        if(forced != '', forced, ifNull(toString(d.residency), '')) AS must,
        if(forced_before != '', forced_before, ifNull(toString(d.residency), '')) AS must_before,
        arrayFlatten(arrayMap(x -> x.2, arrayFilter(x -> x.1 = must, p.rules))) AS allowed,
        arrayFlatten(arrayMap(x -> x.2, arrayFilter(x -> x.1 = must_before, q.rules))) AS allowed_before,
        must = '' OR has(allowed, served_in) OR must_before = '' OR has(allowed_before, served_in) AS fine
    FROM
    (
        SELECT *, 1 AS one, ts - toIntervalMillisecond({grace_ms:UInt32}) AS earlier
        FROM decisions
        WHERE verdict = 'dispatched' AND ts >= now64(3) - toIntervalSecond({since:UInt32})
    ) AS d
    ASOF LEFT JOIN policies AS p ON d.one = p.one AND d.ts >= p.since
    ASOF LEFT JOIN policies AS q ON d.one = q.one AND d.earlier >= q.since
)
SELECT
    count() AS checked,
    countIf(must != '') AS restricted,
    countIf(NOT fine) AS violations,
    groupArrayIf(1000)(
        (decision_id, intent_id, toString(tenant), toUnixTimestamp64Milli(ts), served_in, must, allowed),
        NOT fine
    ) AS examples
FROM judged
