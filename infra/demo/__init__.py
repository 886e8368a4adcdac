"""The demo: the whole loop on a workload, with its books checked."""
