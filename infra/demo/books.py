"""The demo's books: the client's ledger against Kafka's log and ClickHouse, settled and shown."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sim.loadgen.ledger import IntentRecord
from sinks.books import Books, SideBooks, log_ends, read_log_intents, reconcile, stored_books
from sinks.query_client import QueryError
from transport.clock import now_ms

SETTLE_S = 60.0
"""Lost decisions are closed, and the sink catches up, well within this."""


@dataclass(frozen=True)
class Offsets:
    """Where a run begins: in the log by offsets, in the store by time."""

    ends: dict[tuple[str, int], int]
    from_ms: int


@dataclass(frozen=True)
class DemoBooks:
    """The comparison, and how many intents of the ledger no router ever answered or knew of."""

    compared: Books
    unanswered: int

    @property
    def agree(self) -> bool:
        return self.compared.agree

    def to_dict(self) -> dict[str, object]:
        """Plain data for summaries."""
        return {**self.compared.to_dict(), "unanswered": self.unanswered}


class BookReader:
    """Counts a run independently of the services. Only intents whose id begins with ``run_id`` count."""

    def __init__(self, bootstrap: str, clickhouse_url: str, run_id: str) -> None:
        self._bootstrap = bootstrap
        self._clickhouse_url = clickhouse_url
        self._run_id = run_id
        self._since: Offsets | None = None

    async def begin(self) -> None:
        """Note where the log ends before the run."""
        self._since = Offsets(await log_ends(self._bootstrap), now_ms())

    async def settle(self, records: Sequence[IntentRecord], *, timeout_s: float = SETTLE_S) -> DemoBooks:
        """Compare again and again until the books agree and nothing is open, or the time is up."""
        if self._since is None:
            raise RuntimeError("The books were never begun.")
        offered = {record.intent_id for record in records}
        must = {record.intent_id for record in records if record.must_be_logged}
        seen = {
            attempt.decision_id for record in records for attempt in record.attempts if attempt.decision_id
        }
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout_s
        while True:
            books, open_decisions = await self._compare(offered, must, seen)
            if (books.compared.agree and not open_decisions) or loop.time() > until:
                return books
            await asyncio.sleep(1.0)

    async def _compare(self, offered: set[str], must: set[str], seen: set[str]) -> tuple[DemoBooks, set[str]]:
        assert self._since is not None
        log = await read_log_intents(self._bootstrap, self._since.ends)
        try:
            stored = await stored_books(self._clickhouse_url, from_ms=self._since.from_ms)
        except QueryError:
            stored = SideBooks()  # the sink may just be coming back
        dispatched = {key for key, intent in log.dispatched.items() if intent.startswith(self._run_id)}
        open_decisions = (seen | dispatched) - log.decisions.keys()
        ours, theirs = self._ours(log), self._ours(stored)
        # What no router answered (its connection broke, or none was made) need not be known, but may be.
        expected = must | (offered & ours.causes().keys())
        return DemoBooks(reconcile(expected, ours, theirs), len(offered - expected)), open_decisions

    def _ours(self, side: SideBooks) -> SideBooks:
        mine = {key: book for key, book in side.decisions.items() if book.intent_id.startswith(self._run_id)}
        return SideBooks(mine)


def show_books(console: Console, settled: DemoBooks) -> None:
    """Print the comparison, and examples of what does not agree."""
    books = settled.compared
    made = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    made.add_column(justify="right", style="bold")
    made.add_column()
    made.add_row(f"{books.intents:,}", "intents in the load generator's own ledger")
    made.add_row(f"{books.produced:,}", "of them ended in Kafka's log, as an independent reader counts them")
    made.add_row(f"{books.stored:,}", "of them ended in ClickHouse")
    made.add_row(_figure(books.missing), "missing")
    made.add_row(_figure(books.duplicates), "twice")
    if books.unexpected:
        made.add_row(_figure(books.unexpected), "that nobody asked for")
    if settled.unanswered:
        made.add_row(f"{settled.unanswered:,}", "more that no router answered")
    made.add_row(f"{books.lost:,}", "lost with a router that died" if books.lost else "lost")
    verdict = "[green]The books agree.[/]" if books.agree else "[red]The books do not agree.[/]"
    console.print(
        Panel(made, title="The books", title_align="left", subtitle=verdict, box=box.ROUNDED, expand=False)
    )
    if not books.agree:
        for name, ids in books.examples.items():
            console.print(Text(f"{name}: {', '.join(ids[:5])}", style="red"))


def _figure(count: int) -> str:
    return f"[red]{count:,}[/]" if count else "0"
