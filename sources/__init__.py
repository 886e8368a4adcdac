"""Producers of raw events: engine adapters, discovery, and the agent that runs them."""
