"""One table per engine: which of its metrics fills which reading (YAML, read by sources.engines.mapping)."""
