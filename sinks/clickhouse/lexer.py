"""ClickHouse SQL cut into tokens, strictly: what this lexer could read otherwise than the engine is refused.

It serves two masters: migrations are split into statements with it, and the read-only endpoint looks at what
a statement is made of before the engine sees it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["word", "quoted", "string", "number", "sign", "comment"]

_RULES: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("comment", re.compile(r"--[^\n]*|#(?=[ !])[^\n]*|/\*(?:(?!\*/|/\*)[\s\S])*\*/")),
    ("string", re.compile(r"'(?:[^'\\]|\\[\s\S]|'')*'")),
    ("quoted", re.compile(r'`[^`\\]*`|"[^"\\]*"')),
    ("word", re.compile(r"[A-Za-z_][A-Za-z0-9_]*")),
    ("number", re.compile(r"(?:0[xXbB][0-9A-Fa-f]+|\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?)")),
    ("sign", re.compile(r"[-+*/%=<>!(),.;:?\[\]{}|&^@~]")),
)
_SPACE = re.compile(r"[ \t\r\n]+")


class NotReadable(ValueError):  # noqa: N818 - reads as what happened
    """The text holds something that this lexer does not take; the message says what and where."""


@dataclass(frozen=True, slots=True)
class Token:
    """One token: its kind, its text as written, and where it begins."""

    kind: Kind
    text: str
    start: int

    @property
    def name(self) -> str:
        """A word or quoted identifier in lower case without its quotes; else an empty string."""
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].lower() if self.kind == "quoted" else ""


def tokens(sql: str) -> Iterator[Token]:
    """All tokens, comments included. Raises NotReadable.

    Refused are: characters other than ASCII outside of strings, quoted names and comments (the engine takes
    some of them as spaces, quotes and operators), heredocs, nested comments, quoted names with escapes, and
    whatever is left open.
    """
    at = 0
    while at < len(sql):
        if space := _SPACE.match(sql, at):
            at = space.end()
            continue
        if sql.startswith(("/*", "*/"), at) and not _RULES[0][1].match(sql, at):
            raise NotReadable(f"At character {at + 1} a comment is nested or left open.")
        for kind, rule in _RULES:
            if found := rule.match(sql, at):
                yield Token(kind, found.group(), at)
                at = found.end()
                break
        else:
            raise NotReadable(
                f"At character {at + 1} there is something that is not taken here: {sql[at]!r}."
            )


def statements(sql: str) -> list[str]:
    """The statements of a script, without comments and semicolons. Raises NotReadable."""
    done: list[str] = []
    parts: list[str] = []
    last = 0
    for token in tokens(sql):
        if token.kind == "comment":
            parts.append(sql[last : token.start])
            last = token.start + len(token.text)
        elif token.text == ";":
            parts.append(sql[last : token.start])
            last = token.start + 1
            done.append(_tidy(parts))
            parts = []
    done.append(_tidy([*parts, sql[last:]]))
    return [statement for statement in done if statement]


def _tidy(parts: list[str]) -> str:
    lines = [line.rstrip() for line in " ".join(parts).strip().splitlines()]
    return "\n".join(line for line in lines if line)
