"""Policies to compare: what peers do, from their published formulas, and our own minds through adapters."""
