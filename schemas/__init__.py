"""Every event, table row and topic of TokenFleet, each defined once.

Pydantic models are the definition: they validate at the edge and give the JSON Schemas. The fast path
(``schemas.fastpath``) derives msgspec structs from the same models, so both read one contract.
"""
