"""The embedded broker: real Apache Kafka on this machine, from packages alone."""
