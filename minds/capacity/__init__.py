"""FleetMind's capacity table: telemetry and outcomes become a row an instance and a row a region and pool."""
