"""Which statements the read-only endpoint lets through to the engine.

The engine itself runs every query with ``readonly = 1`` and limits; this gate stands in front of it since
that does not cover all: an in-process engine writes ``INTO OUTFILE`` as a client would, some functions read
files, and some reach the network.
"""

from __future__ import annotations

from collections.abc import Iterable

from sinks.clickhouse.lexer import NotReadable, Token, tokens

FIRST_WORDS = frozenset({"select", "with", "show", "describe", "desc", "explain", "exists"})
HARMLESS_TABLE_FUNCTIONS = frozenset(
    {
        "format",
        "generate_series",
        "generateseries",
        "null",
        "numbers",
        "numbers_mt",
        "primes",
        "values",
        "view",
        "zeros",
        "zeros_mt",
    }
)
"""All others of the engine are refused, so those of a newer engine are too until someone looks at them."""
FORBIDDEN_FUNCTIONS = frozenset(
    {"file", "sleep", "sleepeachrow", "catboostevaluate", "modelevaluate", "fuzzquery"}
)
"""Refused wherever the name stands: as ``f(x)``, ``* APPLY f`` or ``arrayMap(f, x)``."""
FORBIDDEN_PREFIX = "ai"
"""``aiGenerate`` and its like call models over the network."""
FORBIDDEN_WORDS = frozenset({"into", "outfile", "infile", "parallel"})
FORBIDDEN_NAMES = frozenset({"default", "stack_trace"})
"""The embedded engine's ``default`` database is the file system; stack traces signal all threads."""


class NotAllowed(ValueError):  # noqa: N818 - reads as what happened
    """This endpoint does not run the statement; the message says why."""


class Gate:
    """Checks statements. ``table_functions`` and ``functions`` are all names that the engine knows."""

    def __init__(self, table_functions: Iterable[str], functions: Iterable[str]) -> None:
        self._table_functions = {name.lower() for name in table_functions} - HARMLESS_TABLE_FUNCTIONS
        network = {name.lower() for name in functions if name.lower().startswith(FORBIDDEN_PREFIX)}
        self._functions = FORBIDDEN_FUNCTIONS | network

    def check(self, sql: str) -> tuple[str, str | None]:
        """The statement to run, comments replaced by spaces, and its own FORMAT (lower case) if it names one.

        Raises NotAllowed.
        """
        if "\x00" in sql:
            raise NotAllowed("The statement holds a NUL character.")
        try:
            found = list(tokens(sql))
        except NotReadable as error:
            raise NotAllowed(str(error)) from None
        clean = _without_comments(sql, found)
        parts = [token for token in found if token.kind != "comment"]
        while parts and parts[-1].text == ";":
            last = parts.pop()
            clean = clean[: last.start] + " " + clean[last.start + 1 :]
        self._check_start(parts)
        for at, token in enumerate(parts):
            self._check_token(parts, at, token)
        return clean.strip(), _format(parts)

    def _check_start(self, parts: list[Token]) -> None:
        first = next((token for token in parts if token.text != "("), None)
        if first is None:
            raise NotAllowed("The statement is empty.")
        if first.kind != "word" or first.name not in FIRST_WORDS:
            raise NotAllowed(
                "Only SELECT, WITH, SHOW, DESCRIBE, EXPLAIN and EXISTS are answered here, "
                f"not {first.text[:40]}."
            )

    def _check_token(self, parts: list[Token], at: int, token: Token) -> None:
        if token.text == ";":
            raise NotAllowed("Only one statement at a time is answered here.")
        if token.text == "{" and any(part.name == "identifier" for part in parts[at : at + 5]):
            raise NotAllowed("Parameters of type Identifier are not taken here.")
        name = token.name
        if not name:
            return
        after = parts[at + 1] if at + 1 < len(parts) else None
        called = after is not None and after.text == "("
        if name in self._functions:
            raise NotAllowed(
                f"The name {token.text} is not taken here: a function of this name reaches outside."
            )
        if called and token.kind == "quoted":
            raise NotAllowed("Names of functions are not quoted here.")
        if called and name in self._table_functions:
            raise NotAllowed(f"The table function {token.text} is not taken here: it may reach outside.")
        if token.kind == "word" and name in FORBIDDEN_WORDS:
            raise NotAllowed(f"{token.text.upper()} is not taken here.")
        if name in FORBIDDEN_NAMES:
            raise NotAllowed(f"The name {token.text} is not taken here.")
        if token.kind == "word" and name == "settings" and _sets(parts, at):
            raise NotAllowed("SETTINGS are not taken in a statement here; the endpoint sets its own limits.")


def _sets(parts: list[Token], at: int) -> bool:
    """Whether ``SETTINGS`` at this place is the clause: a name and a value follow it."""
    following = parts[at + 1 : at + 3]
    return len(following) == 2 and bool(following[0].name) and following[1].text == "="


def _format(parts: list[Token]) -> str | None:
    """The name after the last FORMAT, where that ends the statement."""
    if len(parts) >= 3 and parts[-2].kind == "word" and parts[-2].name == "format":
        return parts[-1].name or None
    return None


def _without_comments(sql: str, found: list[Token]) -> str:
    clean = list(sql)
    for token in found:
        if token.kind == "comment":
            clean[token.start : token.start + len(token.text)] = " " * len(token.text)
    return "".join(clean)
