"""An open-loop load generator that plays a plan of intents against routers and keeps its own ledger."""

from sim.loadgen.ledger import AttemptRecord, IntentRecord, Ledger, LedgerError, LiveView, read_ledger
from sim.loadgen.options import LoadOptions
from sim.loadgen.run import run_load
from sim.loadgen.summary import LoadSummary, summarise

__all__ = [
    "AttemptRecord",
    "IntentRecord",
    "Ledger",
    "LedgerError",
    "LiveView",
    "LoadOptions",
    "LoadSummary",
    "read_ledger",
    "run_load",
    "summarise",
]
