-- The intents that an id means: the id itself, or the intent of the decision of this id.
SELECT DISTINCT tenant, intent_id
FROM
(
    SELECT tenant, intent_id FROM decisions_raw WHERE intent_id = {id:String} OR decision_id = {id:String}
    UNION ALL
    SELECT tenant, intent_id FROM outcomes_raw WHERE intent_id = {id:String} OR decision_id = {id:String}
)
ORDER BY tenant, intent_id
