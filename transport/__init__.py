"""Kafka as the services use it: topics from the registry, envelopes out, rows in, dead letters aside."""
