"""Workloads: public traces, the built-in generator, and the plan of intents that either becomes."""
