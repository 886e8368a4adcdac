"""The lexer reads what the engine reads, or refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.clickhouse.lexer import NotReadable, statements, tokens


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT /* a /* b */ c */ 1",
        "SELECT 1 /* open",
        "SELECT 1 */",
        "SELECT 'open",
        'SELECT "open',
        "SELECT `a\\`b`",
        "SELECT $$heredoc$$",
        "SELECT file\u00a0('x')",
        "SELECT \u201ca\u201d",
        "SELECT 1 \u2212 1",
        "SELECT 1 #no space",
        "SELECT 1 \\ 2",
        "SELECT\x0b1",
    ],
)
def test_what_could_be_read_otherwise_is_refused(sql: str) -> None:
    with pytest.raises(NotReadable):
        list(tokens(sql))


def test_strings_hide_what_is_in_them() -> None:
    sql = """SELECT 'it''s; \\' -- no', `a;b`, "c--d" -- ; yes\n, 1e-3 # end\n/* ; */ FROM t; SELECT 2;"""
    first, second = statements(sql)
    assert first.split() == [
        "SELECT",
        "'it''s;",
        "\\'",
        "--",
        "no',",
        "`a;b`,",
        '"c--d"',
        ",",
        "1e-3",
        "FROM",
        "t",
    ]
    assert second == "SELECT 2"


@given(st.text(alphabet="ab'`\"\\;-/*# \n$(){}.é0", max_size=40))
def test_tokens_cover_the_text_or_it_is_refused(sql: str) -> None:
    try:
        found = list(tokens(sql))
    except NotReadable:
        return
    at = 0
    for token in found:
        assert sql[at : token.start].strip(" \t\r\n") == ""
        assert sql[token.start :].startswith(token.text)
        at = token.start + len(token.text)
    assert sql[at:].strip(" \t\r\n") == ""
