"""Intent and attempt: what a user wanted once, however often it was tried.

An ``Idempotency-Key`` names the intent. Without one, a request with the same tenant and body as an attempt
that has just ended badly is taken for its retry, and flagged as inferred.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

MAX_ATTEMPT = 1000
HORIZON_MS = 30_000
"""How long after its deadline an intent may still be referred to."""
K = TypeVar("K")
_KEY_AS_ID = re.compile(r"[A-Za-z0-9._:@/+\-]{1,128}")


@dataclass(frozen=True, slots=True)
class IntentAttempt:
    """One attempt of an intent; ``started_at_ms`` is the first attempt's clock."""

    intent_id: str
    inferred: bool
    attempt: int
    started_at_ms: int


@dataclass(slots=True)
class _Known:
    intent_id: str
    attempt: int
    started_at_ms: int
    expires_ms: float


def intent_id_of(tenant: str, key: str) -> str:
    """The intent id of an Idempotency-Key: the key itself where it is a valid id, else a hash.

    The hash includes the tenant; keys that serve as ids are the tenants' own to keep apart.
    """
    if _KEY_AS_ID.fullmatch(key):
        return key
    return hashlib.blake2b(f"{tenant}\0{key}".encode("utf-8", "replace"), digest_size=16).hexdigest()


def body_digest(tenant: str, path: str, body: bytes) -> str:
    """What makes two requests without a key the same: tenant, API path and exact bytes."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tenant}\0{path}\0".encode())
    digest.update(body)
    return digest.hexdigest()


class IntentBook:
    """Remembers recent intents to number their attempts. Bounded; the oldest are forgotten first."""

    def __init__(self, *, capacity: int = 65_536, retry_window_ms: int = 30_000) -> None:
        self._capacity = capacity
        self._retry_window_ms = retry_window_ms
        self._named: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._unsettled: OrderedDict[str, _Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._named) + len(self._unsettled)

    def begin(
        self,
        *,
        tenant: str,
        key: str | None,
        digest: str,
        fresh_id: str,
        now_ms: int,
        deadline_ms: float,
        claimed_attempt: int | None = None,
        claimed_start_ms: int | None = None,
    ) -> IntentAttempt:
        """Which attempt of which intent a request is.

        ``deadline_ms`` is the class's span for a whole intent. The client's claims are believed within
        bounds: a start is never in the future nor longer ago than the deadline, an attempt is 1 to 1000 and
        never below what this router has already seen of the intent.
        """
        known = self._recall(tenant, key, digest, now_ms)
        start = now_ms if known is None else known.started_at_ms
        if claimed_start_ms is not None:
            start = min(start, claimed_start_ms)
        start = int(min(now_ms, max(start, now_ms - deadline_ms)))
        attempt = 1 if known is None else known.attempt + 1
        if claimed_attempt is not None:
            attempt = max(attempt, claimed_attempt)
        attempt = min(MAX_ATTEMPT, max(1, attempt))
        if key is not None:
            intent_id = intent_id_of(tenant, key)
        else:
            intent_id = fresh_id if known is None else known.intent_id
        if key is not None:
            entry = _Known(intent_id, attempt, start, start + deadline_ms + HORIZON_MS)
            self._keep(self._named, (tenant, key), entry)
        return IntentAttempt(intent_id, key is None, attempt, start)

    def next_attempt(self, tenant: str, key: str | None, last: IntentAttempt) -> IntentAttempt:
        """The router itself tries again: the next number of the same intent."""
        attempt = min(MAX_ATTEMPT, last.attempt + 1)
        if key is not None and (known := self._named.get((tenant, key))) is not None:
            attempt = min(MAX_ATTEMPT, max(attempt, known.attempt + 1))
            known.attempt = attempt
        return IntentAttempt(last.intent_id, last.inferred, attempt, last.started_at_ms)

    def ended(self, last: IntentAttempt, digest: str, *, ok: bool, now_ms: int) -> None:
        """The request is over; where it ended badly, an equal one soon is its retry."""
        if last.inferred and not ok:
            entry = _Known(
                last.intent_id, last.attempt, last.started_at_ms, float(now_ms + self._retry_window_ms)
            )
            self._keep(self._unsettled, digest, entry)

    def _recall(self, tenant: str, key: str | None, digest: str, now_ms: int) -> _Known | None:
        # An inferred retry uses its predecessor up: two equal requests at once are two intents.
        known = self._named.get((tenant, key)) if key is not None else self._unsettled.pop(digest, None)
        return known if known is not None and now_ms <= known.expires_ms else None

    def _keep(self, book: OrderedDict[K, _Known], name: K, known: _Known) -> None:
        book[name] = known
        book.move_to_end(name)
        while len(book) > self._capacity:
            book.popitem(last=False)
