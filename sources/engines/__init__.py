"""From an engine's Prometheus text to typed readings; which metric fills which reading is data."""
