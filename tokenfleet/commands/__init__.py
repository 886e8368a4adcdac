"""One module per `tokenfleet` command; each exposes `register(app)`."""
