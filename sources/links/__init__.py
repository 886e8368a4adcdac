"""How far this region's routers are from those of other regions: probes over HTTP, owned by the agent."""
