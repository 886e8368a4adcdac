"""``python -m tokenfleet``."""

from tokenfleet.cli import main

main()
