"""FleetMind: which region may take a request, and which should."""
