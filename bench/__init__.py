"""Benchmarks: each prints a table, states the machine, and writes the same figures as JSON."""
