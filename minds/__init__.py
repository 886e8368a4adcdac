"""Everything that decides, pure: no clock, no I/O, no Kafka. ``now_ms`` and seeds are arguments."""
