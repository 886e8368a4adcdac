"""The books of a run: the load generator's ledger, Kafka's log, and ClickHouse, each counted by itself.

The reader of the log shares no code with the services: it takes the records apart with plain JSON. What the
three say is compared by ``reconcile``, which is pure.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from schemas.topics import DECISIONS, OUTCOMES, TOPICS
from sinks.query_client import QueryClient
from transport.errors import BrokerUnavailable
from transport.log_reader import partitions_of, start_log_reader

_WAIT_S = 15.0
_PAGE = 50_000
_EXAMPLES = 20


@dataclass(slots=True)
class DecisionBook:
    """One decision's outcomes: real ones, lost ones that were inferred, and the cause that counts."""

    intent_id: str
    outcomes: int = 0
    inferred_lost: int = 0
    cause: str = ""
    attempt: int = 1

    @property
    def duplicates(self) -> int:
        """Outcomes too many; one real outcome after one inferred lost is a correction, not a duplicate."""
        return max(0, self.outcomes - 1) + max(0, self.inferred_lost - 1)

    @property
    def corrected(self) -> bool:
        """Closed as lost, and then ended for real."""
        return self.outcomes > 0 and self.inferred_lost > 0


@dataclass(slots=True)
class SideBooks:
    """What one side, the log or the store, says: decisions by id."""

    decisions: dict[str, DecisionBook] = field(default_factory=dict)

    def causes(self) -> dict[str, str]:
        """Intent id to final cause: ok if any attempt was, else as the last attempt ended."""
        last: dict[str, tuple[bool, int, str]] = {}
        for book in self.decisions.values():
            rank = (book.cause == "ok", book.attempt, book.cause)
            last[book.intent_id] = max(last.get(book.intent_id, rank), rank)
        return {intent: rank[2] for intent, rank in last.items()}

    @property
    def duplicates(self) -> dict[str, int]:
        """Decision id to outcomes too many."""
        return {key: book.duplicates for key, book in self.decisions.items() if book.duplicates}


@dataclass(slots=True)
class LogBooks(SideBooks):
    """The log's side: also how many records and events were read, and how many were neither decision nor
    outcome. ``dispatched`` maps each decision that named an instance to its intent: each must have an end."""

    dispatched: dict[str, str] = field(default_factory=dict)
    records: int = 0
    events: int = 0
    unreadable: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """The comparison. The books agree where missing, duplicates and unexpected are 0.

    ``intents``: intents of the ledger that reached a router. ``produced`` and ``stored``: those of them with
    an outcome in the log and in ClickHouse. ``missing``: in the ledger but not in the log, or decisions in
    the log but not in ClickHouse. ``duplicates``: outcomes too many, in the log or in ClickHouse. ``lost``:
    intents whose final state is lost. ``corrected``: decisions inferred as lost that then ended for real.
    ``unexpected``: intents in the log or in ClickHouse that the ledger does not have, or decisions that only
    ClickHouse has.
    """

    intents: int
    produced: int
    stored: int
    missing: int
    duplicates: int
    lost: int
    corrected: int
    unexpected: int
    examples: dict[str, list[str]]

    @property
    def agree(self) -> bool:
        return self.missing == 0 and self.duplicates == 0 and self.unexpected == 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for summaries."""
        return {**asdict(self), "agree": self.agree}


def reconcile(
    ledger_intents: Collection[str] | Mapping[str, object], log: SideBooks, stored: SideBooks
) -> Books:
    """Compare the ledger's intents (those that reached a router) with the log and the store."""
    offered = set(ledger_intents)
    log_causes, stored_causes = log.causes(), stored.causes()
    not_logged = offered - log_causes.keys()
    not_stored = log.decisions.keys() - stored.decisions.keys()
    twice = {
        key: max(log.duplicates.get(key, 0), stored.duplicates.get(key, 0))
        for key in log.duplicates.keys() | stored.duplicates.keys()
    }
    strangers = (log_causes.keys() | stored_causes.keys()) - offered
    only_stored = stored.decisions.keys() - log.decisions.keys()
    lost = {intent for intent in offered if log_causes.get(intent) == "lost"}
    return Books(
        intents=len(offered),
        produced=len(offered & log_causes.keys()),
        stored=len(offered & stored_causes.keys()),
        missing=len(not_logged) + len(not_stored),
        duplicates=sum(twice.values()),
        lost=len(lost),
        corrected=sum(book.corrected for book in log.decisions.values()),
        unexpected=len(strangers) + len(only_stored),
        examples={
            name: sorted(keys)[:_EXAMPLES]
            for name, keys in (
                ("intents_not_logged", not_logged),
                ("decisions_not_stored", not_stored),
                ("decisions_twice", twice.keys()),
                ("intents_unexpected", strangers),
                ("decisions_only_stored", only_stored),
                ("intents_lost", lost),
            )
            if keys
        },
    )


async def log_ends(bootstrap: str) -> dict[tuple[str, int], int]:
    """``(topic, partition)`` to the end offset of the log now, for all topics of the registry that exist.

    Raises BrokerUnavailable.
    """
    consumer = await start_log_reader(bootstrap, offset_reset="earliest")
    try:
        there = await consumer.topics()
        partitions = [
            partition
            for topic in TOPICS
            if topic.name in there
            for partition in await partitions_of(consumer, topic.name)
        ]
        ends = await consumer.end_offsets(partitions) if partitions else {}
        return {(tp.topic, tp.partition): int(end) for tp, end in ends.items()}
    except KafkaError as error:
        raise BrokerUnavailable(bootstrap, _WAIT_S, type(error).__name__) from error
    finally:
        await consumer.stop()


async def read_log_intents(bootstrap: str, since_offsets: Mapping[tuple[str, int], int]) -> LogBooks:
    """Read decisions and outcomes from these offsets (``log_ends`` before the run) to their present ends.

    Raises BrokerUnavailable.
    """
    books = LogBooks()
    read = {DECISIONS.name: _count_decision, OUTCOMES.name: _count_outcome}
    ends = {place: end for place, end in (await log_ends(bootstrap)).items() if place[0] in read}
    starts = {place: since_offsets.get(place, 0) for place in ends}
    left = {TopicPartition(*place) for place, end in ends.items() if starts[place] < end}
    if not left:
        return books
    consumer = await start_log_reader(bootstrap, offset_reset="earliest")
    try:
        consumer.assign(sorted(left))
        for tp in left:
            consumer.seek(tp, starts[(tp.topic, tp.partition)])
        while left:
            for tp, records in (await consumer.getmany(timeout_ms=500)).items():
                for record in records:
                    if record.offset < ends[(tp.topic, tp.partition)]:
                        _count_record(books, record.value, read[tp.topic])
            left = {tp for tp in left if await consumer.position(tp) < ends[(tp.topic, tp.partition)]}
    except KafkaError as error:
        raise BrokerUnavailable(bootstrap, _WAIT_S, type(error).__name__) from error
    finally:
        await consumer.stop()
    return books


async def stored_books(url: str, *, from_ms: int) -> SideBooks:
    """What ClickHouse has stored of outcomes dated from ``from_ms`` (UTC epoch ms) on. Raises QueryError."""
    client, books, after = QueryClient(url), SideBooks(), ""
    while True:
        page = await client.run("stored_outcomes", from_ms=from_ms, after=after, page=_PAGE)
        for row in page:
            books.decisions[row["decision_id"]] = DecisionBook(
                row["intent_id"],
                int(row["outcomes"]),
                int(row["inferred_lost"]),
                row["cause"],
                int(row["last_attempt"]),
            )
        if len(page) < _PAGE:
            return books
        after = page[-1]["decision_id"]


def _count_record(books: LogBooks, value: bytes | None, count: Callable[[LogBooks, Any], None]) -> None:
    books.records += 1
    try:
        read = json.loads(value or b"")
        for event in read.get("events", [read]):
            count(books, event)
            books.events += 1
    except (ValueError, KeyError, TypeError, AttributeError):
        books.unreadable += 1


def _count_decision(books: LogBooks, event: dict[str, Any]) -> None:
    if event["verdict"] == "dispatched":
        books.dispatched[event["decision_id"]] = event["intent_id"]


def _count_outcome(books: LogBooks, event: dict[str, Any]) -> None:
    decision, intent, cause, inferred, attempt = _counted(event)
    book = books.decisions.setdefault(decision, DecisionBook(intent))
    if inferred:
        book.inferred_lost += 1
    else:
        book.outcomes += 1
    if not book.cause or not inferred:
        book.cause = cause
    book.attempt = max(book.attempt, attempt)


def _counted(event: dict[str, Any]) -> tuple[str, str, str, bool, int]:
    inferred = bool(event.get("inferred", False))
    return event["decision_id"], event["intent_id"], event["cause"], inferred, int(event["attempt"])


def cause_counts(books: SideBooks) -> Counter[str]:
    """How many intents ended how."""
    return Counter(books.causes().values())
