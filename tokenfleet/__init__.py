"""TokenFleet's front: the CLI and the few names that an embedder needs."""
