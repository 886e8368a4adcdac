"""From scrapes to telemetry and rows: blips, outages, restarts, other models."""

from __future__ import annotations

from collections.abc import Callable

from sources.discovery.config import EndpointConfig
from sources.scraper import Failure, FailureKind, Scrape
from sources.watch import HEARTBEAT_MS, EndpointWatch

Capture = Callable[[str], bytes]
T = 1_795_990_000_000


def _watch(**more: object) -> EndpointWatch:
    said = {
        "instance": "eu-0",
        "engine": "vllm",
        "url": "http://h:1",
        "region": "eu",
        "pools": ["tiny@1", "b@1"],
    }
    return EndpointWatch(EndpointConfig.model_validate(said | more))


def _page(body: bytes, at_ms: int = T) -> Scrape:
    return Scrape(at_ms, 2.5, body)


def _lost(at_ms: int = T, kind: FailureKind = "refused") -> Scrape:
    return Scrape(at_ms, 1.0, failure=Failure(kind, "http://h:1 can't be reached."))


def test_a_page_becomes_telemetry_and_a_row(capture: Capture) -> None:
    watch = _watch()
    assert watch.row_if_due(T) is None, "nothing is known yet"
    seen = watch.take(_page(capture("under_load")))
    (event,) = seen.telemetry
    assert (event.reachable, event.rank, event.at_ms, event.scrape_ms) == (True, 0, T, 2.5)
    assert event.gauges.requests_running.value == 8
    assert event.counters.generation_tokens_total.value == 777
    assert event.boot == f"b{1_795_980_983_710:x}"
    row = watch.row_if_due(T)
    assert row is not None
    assert (row.instance, row.boot, row.reachable, row.pools) == ("eu-0", event.boot, True, ["tiny@1", "b@1"])
    assert (row.as_of_ms, row.valid_for_ms) == (T, 15_000.0)


def test_a_row_is_due_on_change_and_as_heartbeat(capture: Capture) -> None:
    watch = _watch()
    watch.take(_page(capture("idle")))
    assert watch.row_if_due(T) is not None
    watch.take(_page(capture("idle"), T + 250))
    assert watch.row_if_due(T + 250) is None
    assert watch.row_if_due(T + HEARTBEAT_MS) is not None
    watch.reconfigure(watch.config.model_copy(update={"draining": True, "host": "h", "gpus": ["GPU-a"]}))
    row = watch.row_if_due(T + HEARTBEAT_MS + 1)
    assert row is not None
    assert (row.draining, row.host, row.gpus) == (True, "h", ["GPU-a"])


def test_one_lost_answer_is_a_blip_two_are_an_outage(capture: Capture) -> None:
    watch = _watch()
    boot = watch.take(_page(capture("after"))).telemetry[0].boot
    assert watch.take(_lost()).telemetry == []
    assert watch.reachable
    (event,) = watch.take(_lost(T + 500)).telemetry
    assert not event.reachable
    assert event.boot == boot
    assert event.gauges.requests_running.value is None
    row = watch.row_if_due(T + 500)
    assert row is not None
    assert not row.reachable
    assert watch.take(_page(capture("after"), T + 750)).telemetry[0].reachable
    assert watch.take(_lost()).telemetry == []


def test_an_agents_first_lost_answer_says_nothing_the_second_does() -> None:
    watch = _watch()
    assert watch.take(_lost()).telemetry == []
    assert watch.row_if_due(T) is None
    (event,) = watch.take(_lost()).telemetry
    assert (event.reachable, event.boot) == (False, "unseen")
    row = watch.row_if_due(T)
    assert row is not None
    assert (row.reachable, row.boot) == (False, "unseen")


def test_an_engine_that_says_it_is_not_well_is_away_at_once(capture: Capture) -> None:
    watch = _watch()
    watch.take(_page(capture("after")))
    (event,) = watch.take(_lost(kind="unhealthy")).telemetry
    assert not event.reachable
    assert watch.ask_health(), "asked each time until it is well again"


def test_health_is_asked_now_and_then(capture: Capture) -> None:
    watch = _watch()
    asked = []
    for number in range(9):
        asked.append(watch.ask_health())
        watch.take(_page(capture("idle"), T + number))
    assert asked == [True, False, False, False, True, False, False, False, True]


def test_a_restart_is_a_new_boot(capture: Capture) -> None:
    watch = _watch()
    before = watch.take(_page(capture("after"))).telemetry[0]
    watch.take(_lost())
    watch.take(_lost())
    seen = watch.take(_page(capture("restart"), T + 1000))
    assert seen.new_boot
    after = seen.telemetry[0]
    assert after.boot != before.boot
    assert after.boot_started_at_ms > before.boot_started_at_ms
    assert seen.problems == []


def test_a_fall_within_the_boot_is_told(capture: Capture) -> None:
    watch = _watch()
    watch.take(_page(capture("after")))
    seen = watch.take(_page(capture("under_load")))
    assert not seen.new_boot
    (problem,) = seen.problems
    assert problem.kind == "counter_fell"
    assert "generation_tokens_total" in problem.sentence


def test_another_models_metrics_are_not_taken_for_this_ones(capture: Capture) -> None:
    watch = _watch(served_model="llama")
    seen = watch.take(_page(capture("under_load")))
    (event,) = seen.telemetry
    assert event.reachable
    assert event.gauges.requests_running.value is None
    assert [problem.kind for problem in seen.problems] == ["other_model"]


def test_an_html_page_counts_as_a_lost_answer() -> None:
    watch = _watch()
    first, second = watch.take(_page(b"<html/>")), watch.take(_page(b"<html/>"))
    assert first.failure is not None
    assert first.failure.kind == "not_metrics"
    assert not second.telemetry[0].reachable


def test_an_engine_without_labels_or_start_gets_a_minted_boot(llama_cpp_page: bytes) -> None:
    watch = _watch(engine="llama.cpp", served_model="tiny")
    (event,) = watch.take(_page(llama_cpp_page)).telemetry
    assert (event.boot, event.boot_started_at_ms) == (f"a{T:x}", T)
    assert event.gauges.kv_usage_ratio.value is None
    fallen = llama_cpp_page.replace(b"predicted_total 10", b"predicted_total 1")
    assert watch.take(_page(fallen, T + 250)).new_boot


def test_latencies_are_told_once_a_second_and_only_where_they_changed(capture: Capture) -> None:
    watch = _watch()
    told = [
        [one.name for one in watch.take(_page(capture("after"), T + 250 * number)).telemetry[0].latencies]
        for number in range(6)
    ]
    assert set(told[0]) == {"ttft", "itl", "tpot", "queue", "prefill", "decode", "e2e"}
    assert told[1:] == [[]] * 5
    more = capture("after").replace(
        b'_seconds_sum{engine="0",model_name="tiny"} 149.5',
        b'_seconds_sum{engine="0",model_name="tiny"} 150.5',
    )
    assert more != capture("after")
    (event,) = watch.take(_page(more, T + 3000)).telemetry
    assert [one.name for one in event.latencies] == ["ttft"]
    restarted = watch.take(_page(capture("restart"), T + 4000)).telemetry[0]
    assert len(restarted.latencies) == 7, "a new boot's totals are all new"


ROLE_PAGE = (
    b"# TYPE sglang:num_running_reqs gauge\n"
    b'sglang:num_running_reqs{model_name="m",engine_type="prefill",tp_rank="0"} 1\n'
)


def test_the_engines_own_role_fills_the_row_where_the_list_says_none() -> None:
    watch = _watch(engine="sglang")
    assert "other_role" not in {problem.kind for problem in watch.take(_page(ROLE_PAGE)).problems}
    row = watch.row_if_due(T)
    assert row is not None
    assert row.roles == ["prefill"]
    stated = _watch(engine="sglang", roles=["decode"])
    assert "other_role" in {problem.kind for problem in stated.take(_page(ROLE_PAGE)).problems}
    row = stated.row_if_due(T)
    assert row is not None
    assert row.roles == ["decode"], "the list decides; the contradiction is told"
    plain = _watch(roles=["decode", "prefill"])
    assert plain.config.roles == ["decode", "prefill"]


def test_the_models_name_in_the_metrics_may_be_another(capture: Capture) -> None:
    watch = _watch(served_model="public-name", metrics_model="tiny")
    seen = watch.take(_page(capture("under_load")))
    assert seen.problems == []
    assert seen.telemetry[0].gauges.requests_running.value == 8
    row = watch.row_if_due(T)
    assert row is not None
    assert row.served_model == "public-name"
