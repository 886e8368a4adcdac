"""TokenPilot: which instance inside a pool."""
