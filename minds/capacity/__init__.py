"""FleetMind's capacity table: from telemetry and outcomes to one row an instance and one a region and pool."""
