"""The endpoint answers clients as ClickHouse does; nothing gets through that writes or reaches outside."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import clickhouse_connect
import pytest
from clickhouse_connect.driver.exceptions import DatabaseError

from schemas.topics import OUTCOMES
from sinks.clickhouse.engine import ClickHouseStore
from tests.sinks.conftest import Put
from tests.sinks.events import envelope, outcome

SECRET = "the-secret-of-this-test"


async def _ask(
    url: str, sql: str = "", method: str = "POST", **params: str
) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session:
        if method == "GET":
            request = session.get(url, params={"query": sql, **params})
        else:
            request = session.post(url, params=params, data=sql.encode())
        async with request as response:
            return response.status, await response.text(), dict(response.headers)


async def test_statements_by_get_and_post_with_formats_and_parameters(
    endpoint: str, store: ClickHouseStore
) -> None:
    status, text, headers = await _ask(endpoint, "SELECT 1 AS a, 'x' AS b", method="GET")
    assert (status, text, headers["X-ClickHouse-Format"]) == (200, "1\tx\n", "TabSeparated")
    status, text, headers = await _ask(endpoint, "SELECT 1 AS a FORMAT JSONEachRow")
    assert (text, headers["X-ClickHouse-Format"]) == ('{"a":1}\n', "JSONEachRow")
    _, text, headers = await _ask(endpoint, "SELECT 1 AS a", default_format="CSVWithNames")
    assert (text, headers["X-ClickHouse-Format"]) == ('"a"\n1\n', "CSVWithNames")
    _, text, _ = await _ask(
        endpoint, "SELECT {n:UInt32} + 1, {s:String}", param_n="41", param_s="it's \\t; --"
    )
    assert text == "42\tit\\'s \\t; --\n"
    _, text, _ = await _ask(endpoint, "SELECT count() FROM outcomes; -- the end")
    assert text == "0\n"
    _, text, _ = await _ask(endpoint, "name FROM system.databases WHERE name = 'tokenfleet'", query="SELECT")
    assert text == "tokenfleet\n"
    assert (await _ask(endpoint + "/ping", method="GET"))[:2] == (200, "Ok.\n")
    assert (await _ask(endpoint, ""))[:2] == (200, "Ok.\n")


@pytest.mark.parametrize(
    "sql",
    [
        "SHOW TABLES",
        "SHOW CREATE TABLE outcomes_raw",
        "DESCRIBE TABLE outcomes_raw",
        "EXISTS outcomes_raw",
        "EXPLAIN SELECT count() FROM outcomes_raw",
        "WITH 1 AS x SELECT x",
        "((SELECT 1))",
        "SELECT number FROM numbers(3) UNION ALL SELECT 4",
        "SELECT input, region FROM decisions_raw",
        "SELECT format('{}', 'x')",
        "/* why */ SELECT -- what\n 1 # end",
        "SELECT name FROM system.settings LIMIT 1",
        "SELECT 'INSERT INTO x; SETTINGS a = 1 file(' AS text",
        "SELECT max(ts) AS settings FROM outcomes_raw",
    ],
)
async def test_reading_is_answered(endpoint: str, sql: str) -> None:
    status, text, _ = await _ask(endpoint, sql)
    assert status == 200, text


REFUSED = [
    # writing, by any spelling
    "INSERT INTO outcomes_raw (decision_id) VALUES ('x')",
    "insert into outcomes_raw select * from outcomes_raw",
    "WITH 1 AS x INSERT INTO outcomes_raw SELECT x",
    "CREATE TABLE x (a Int8) ENGINE = Memory",
    "CREATE TEMPORARY TABLE x (a Int8)",
    "DROP TABLE outcomes_raw",
    "ALTER TABLE outcomes_raw DELETE WHERE 1",
    "TRUNCATE TABLE outcomes_raw",
    "OPTIMIZE TABLE outcomes_raw",
    "DETACH TABLE outcomes_raw",
    "SYSTEM FLUSH LOGS",
    "KILL QUERY WHERE 1",
    "SET max_threads = 99",
    "USE system",
    "BACKUP TABLE outcomes_raw TO Disk('default', 'x')",
    "ATTACH TABLE x",
    "RENAME TABLE outcomes_raw TO x",
    "GRANT SELECT ON *.* TO x",
    "(((DROP TABLE outcomes_raw)))",
    "/* SELECT */ DROP TABLE outcomes_raw",
    "-- SELECT\nDROP TABLE outcomes_raw",
    # more than one statement
    "SELECT 1; DROP TABLE outcomes_raw",
    "SELECT 1;;SELECT 2",
    "SELECT 1;/* x */DROP TABLE outcomes_raw;",
    "SELECT 1 PARALLEL WITH SELECT 2",
    # files out
    "SELECT 1 INTO OUTFILE '{out}'",
    "SELECT 1 into/**/outfile '{out}' TRUNCATE",
    "(SELECT 1) INTO OUTFILE '{out}' FORMAT CSV",
    "SHOW TABLES INTO OUTFILE '{out}'",
    "EXPLAIN SELECT 1 INTO OUTFILE '{out}'",
    # files in
    "SELECT file('{in}')",
    "SELECT FiLe('{in}')",
    "SELECT file /* x */ ('{in}')",
    "SELECT `file`('{in}')",
    "SELECT \"file\"('{in}')",
    "SELECT arrayMap(file, ['{in}'])",
    "SELECT arrayMap(`file`, ['{in}'])",
    "SELECT arrayMap(x -> file(x), ['{in}'])",
    "SELECT * APPLY file FROM (SELECT '{in}')",
    "SELECT * APPLY(file) FROM (SELECT '{in}')",
    "SELECT * FROM file('{in}', 'LineAsString')",
    "SELECT * FROM (SELECT * FROM (SELECT * FROM file('{in}', 'LineAsString')))",
    "SELECT (SELECT line FROM file('{in}', 'LineAsString') LIMIT 1)",
    "SELECT 1 WHERE 'a' IN (SELECT line FROM file('{in}', 'LineAsString'))",
    "SELECT 1 UNION ALL SELECT * FROM file('{in}', 'LineAsString')",
    "WITH x AS (SELECT * FROM file('{in}', 'LineAsString')) SELECT * FROM x",
    "DESCRIBE file('{in}')",
    "DESCRIBE TABLE file('{in}', 'LineAsString')",
    "EXPLAIN SELECT * FROM file('{in}', 'LineAsString')",
    "SELECT * FROM default.`{in}`",
    "SELECT * FROM `default`.`{in}`",
    'SELECT * FROM "DEFAULT"."{in}"',
    "SELECT * FROM default/**/.`{in}`",
    "EXISTS default.`{in}`",
    "SHOW TABLES FROM default",
    "SELECT * FROM {t:Identifier}",
    "SELECT * FROM {t:/**/Identifier}.x",
    "SELECT * FROM filesystem('/')",
    "SELECT * FROM sqlite('{in}', 'x')",
    "SELECT * FROM fileCluster('x', '{in}')",
    "SELECT * FROM merge('', '.*')",
    "SELECT * FROM dictionary('x')",
    "SELECT * FROM icebergLocal('{in}')",
    # code and the network
    "SELECT * FROM python(x)",
    "SELECT * FROM Python('x')",
    "SELECT * FROM executable('x', 'TSV', 'a Int8')",
    "SELECT * FROM eval('SELECT 1')",
    "SELECT * FROM fuzzQuery('SELECT 1')",
    "SELECT * FROM url('http://127.0.0.1:1/', 'CSV', 'a Int8')",
    "SELECT * FROM uRL ('http://127.0.0.1:1/', 'CSV', 'a Int8')",
    "SELECT * FROM s3('http://127.0.0.1:1/a/b')",
    "SELECT * FROM remote('127.0.0.1', 'system', 'one')",
    "SELECT * FROM remoteSecure('127.0.0.1', 'system', 'one')",
    "SELECT * FROM cluster('default', system.one)",
    "SELECT * FROM mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM postgresql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT * FROM mongodb('127.0.0.1:1', 'a', 'b', 'c', 'd', 'e Int8')",
    "SELECT * FROM redis('127.0.0.1:1', 'k', 'k String')",
    "SELECT * FROM odbc('x', 'y')",
    "SELECT * FROM hdfs('hdfs://127.0.0.1:1/x', 'TSV')",
    "EXPLAIN TABLE OVERRIDE mysql('127.0.0.1:1', 'a', 'b', 'c', 'd')",
    "SELECT aiGenerate('x')",
    "SELECT AIGenerate('x')",
    # limits
    "SELECT 1 SETTINGS max_execution_time = 0",
    "SELECT 1 SETTINGS readonly = 0",
    "SELECT * FROM (SELECT 1 SETTINGS max_result_rows = 0)",
    "SELECT 1 /**/SETTINGS/**/max_threads=9",
    "SELECT sleep(3)",
    "SELECT sleepEachRow(1) FROM numbers(3)",
    "SELECT arrayMap(sleep, [1])",
    "SELECT * FROM system.stack_trace",
    # what the lexer won't guess at
    "SELECT file\u00a0('{in}')",
    "SELECT /* /* ' */ */ file('{in}') -- '",
    "SELECT `fil\\x65`('{in}')",
    "SELECT $a$x$a$",
    "\ufeffSELECT 1",
    ";",
    "FROM system.one SELECT dummy",
    "--",
]


@pytest.mark.parametrize("sql", REFUSED)
async def test_nothing_else_is_let_through(endpoint: str, tmp_path: Path, sql: str) -> None:
    inside, out = tmp_path / "secret.txt", tmp_path / f"{uuid.uuid4().hex}.out"
    inside.write_text(SECRET)
    statement = sql.replace("{in}", str(inside)).replace("{out}", str(out))
    for method in ("POST", "GET"):
        status, text, headers = await _ask(endpoint, statement, method=method, param_t=str(inside))
        assert status == 403, text
        assert text.startswith("Code: 164. DB::Exception: ")
        assert text.endswith("(READONLY)\n")
        assert headers["X-ClickHouse-Exception-Code"] == "164"
        assert SECRET not in text
        assert not out.exists()


@pytest.mark.parametrize(
    ("sql", "needle"),
    [
        ("SELECT * FROM tokenfleet.`{in}`", "UNKNOWN_TABLE"),
        ("SELECT * FROM '{in}'", ""),
        ("SELECT * FROM `{in}`", "UNKNOWN_TABLE"),
        ("SELECT * FROM system.`{in}`", "UNKNOWN_TABLE"),
    ],
)
async def test_paths_are_no_tables(endpoint: str, tmp_path: Path, sql: str, needle: str) -> None:
    inside = tmp_path / "secret.csv"
    inside.write_text(f"a\n{SECRET}\n")
    status, text, _ = await _ask(endpoint, sql.replace("{in}", str(inside)))
    assert status >= 400
    assert needle in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "name", ["output_format_schema", "format_schema", "max_threads_x", "allow_ddl", "compress"]
)
async def test_settings_by_url_are_a_short_list(endpoint: str, name: str) -> None:
    status, text, _ = await _ask(endpoint, "SELECT 1", **{name: "1"})
    assert status == 403
    assert name in text


async def test_limits_can_be_tightened_but_not_lifted(endpoint: str) -> None:
    rows = "SELECT number FROM numbers(100)"
    status, text, _ = await _ask(endpoint, rows, max_result_rows="10")
    assert status == 500
    assert "(TOO_MANY_ROWS_OR_BYTES)" in text
    for lifted in ("0", "99999999", "-1", "x' , readonly = '0"):
        limit = "SELECT value FROM system.settings WHERE name = 'max_result_rows'"
        assert (await _ask(endpoint, limit, max_result_rows=lifted))[1] == "1000000\n"
    _, text, _ = await _ask(
        endpoint, "SELECT groupArray(number) FROM numbers(1000000000)", max_memory_usage="10000000"
    )
    assert "(MEMORY_LIMIT_EXCEEDED)" in text
    _, text, _ = await _ask(
        endpoint, "SELECT sum(number) FROM numbers(1000000000000)", max_execution_time="1"
    )
    assert "(TIMEOUT_EXCEEDED)" in text
    assert (await _ask(endpoint, "SELECT getSetting('readonly')"))[1] == "1\n"


async def test_errors_as_clickhouse_gives_them(endpoint: str) -> None:
    for sql, status, code in (
        ("SELECT FROM WHERE", 400, "62"),
        ("SELECT * FROM nowhere", 404, "60"),
        ("SELECT nothing", 404, "47"),
        ("SELECT 1 FORMAT Nonsense", 400, "73"),
        ("SELECT 1 FORMAT `MySQLWire`", 400, "73"),
        ("SELECT {n:UInt8}", 400, "456"),
    ):
        answered, text, headers = await _ask(endpoint, sql)
        assert (answered, headers["X-ClickHouse-Exception-Code"]) == (status, code), text
        assert text.startswith(f"Code: {code}. DB::Exception: ")
    assert (await _ask(endpoint, "SELECT 1", database="elsewhere"))[0] == 404
    assert (await _ask(endpoint, "SELECT 1", default_format="dataframe"))[0] == 400


async def test_one_request_leaves_nothing_for_the_next(endpoint: str) -> None:
    _, text, _ = await _ask(endpoint, "SELECT currentDatabase()", database="system", max_result_rows="5")
    assert text == "system\n"
    _, text, _ = await _ask(endpoint, "SELECT currentDatabase(), getSetting('max_result_rows')")
    assert text == "tokenfleet\t1000000\n"


async def test_clickhouse_connects_own_client(endpoint: str, put: Put) -> None:
    await put(
        OUTCOMES, [envelope(OUTCOMES, [outcome("d1", "i1"), outcome("d2", "i2", ttft_ms=None)], offset=0)]
    )

    def use() -> Any:
        port = int(endpoint.rsplit(":", 1)[1])
        client = clickhouse_connect.get_client(host="127.0.0.1", port=port)
        rows = client.query(
            "SELECT decision_id, ttft_ms, ts FROM outcomes WHERE tenant = {t:String} ORDER BY 1",
            parameters={"t": "acme"},
        ).result_rows
        frame = client.query_df("SELECT decision_id, ttft_ms, cause FROM outcomes ORDER BY 1")
        named = client.command("SELECT count() FROM intents")
        with pytest.raises(DatabaseError, match="READONLY"):
            client.command("DROP TABLE outcomes_raw")
        with pytest.raises(DatabaseError, match="Code: 60"):
            client.query("SELECT * FROM nowhere")
        client.close()
        return rows, frame, named

    rows, frame, named = await asyncio.to_thread(use)
    assert [row[:2] for row in rows] == [("d1", 200.0), ("d2", None)]
    assert list(frame["decision_id"]) == ["d1", "d2"]
    assert frame["ttft_ms"].isna().tolist() == [False, True]
    assert named == 2


async def test_health_and_metrics(endpoint: str) -> None:
    assert (await _ask(endpoint + "/healthz", method="GET"))[0] == 200
    assert (await _ask(endpoint + "/readyz", method="GET"))[0] == 200
    _, text, _ = await _ask(endpoint + "/metrics", method="GET")
    assert "tokenfleet_sink_queries_total" in text
