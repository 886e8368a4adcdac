"""Drift alerts: named, after two scrapes, resolved when the metric is back, told again so that they last."""

from __future__ import annotations

from collections.abc import Callable

from schemas.operations import AlertRow
from sources.discovery.config import EndpointConfig
from sources.drift import HEARTBEAT_MS, DriftAlerts, alert_id, is_drift_alert
from sources.problems import Problem
from sources.scraper import Failure, Scrape
from sources.watch import EndpointWatch

Capture = Callable[[str], bytes]
T = 1_795_990_000_000
GONE = Problem(
    "missing", "requests_running is unknown: the text has no x:running.", "requests_running", "x:running"
)
ODD = Problem("not_finite", "kv_usage_ratio is unknown: x:kv: its value is nan.", "kv_usage_ratio", "x:kv")


def _states(rows: list[AlertRow]) -> list[tuple[str, str]]:
    return [(row.alert_id, row.state) for row in rows]


def test_it_fires_at_the_second_scrape_and_names_the_metric() -> None:
    alerts = DriftAlerts("eu-0")
    assert alerts.observe([GONE, ODD], T) == []
    (row,) = alerts.observe([GONE], T + 250)
    assert (row.alert_id, row.state, row.subject) == ("engine-drift/eu-0/requests_running", "firing", "eu-0")
    assert "x:running" in row.summary
    assert (row.severity, row.since_ms) == ("warning", T + 250)
    assert alerts.observe([GONE], T + 500) == []
    assert alerts.firing == ("requests_running",)


def test_it_is_resolved_by_the_first_scrape_that_has_the_metric() -> None:
    alerts = DriftAlerts("eu-0")
    for number in range(3):
        alerts.observe([GONE], T + number)
    (row,) = alerts.observe([], T + 1000)
    assert (row.state, row.as_of_ms) == ("resolved", T + 1000)
    assert alerts.observe([], T + 2000) == []
    assert alerts.observe([GONE], T + 3000) == [], "it counts anew"


def test_a_blip_between_good_scrapes_fires_nothing() -> None:
    alerts = DriftAlerts("eu-0")
    for number in range(6):
        assert alerts.observe([GONE] if number % 2 else [], T + number) == []


def test_a_firing_one_is_told_again_with_its_first_time() -> None:
    alerts = DriftAlerts("eu-0")
    alerts.observe([GONE], T)
    alerts.observe([GONE], T + 250)
    assert alerts.observe([GONE], T + HEARTBEAT_MS) == []
    (row,) = alerts.observe([GONE], T + 250 + HEARTBEAT_MS)
    assert (row.state, row.since_ms, row.as_of_ms) == ("firing", T + 250, T + 250 + HEARTBEAT_MS)


def test_what_an_earlier_life_left_firing_is_taken_over() -> None:
    alerts = DriftAlerts("eu-0")
    alerts.observe([GONE], T)
    (left,) = alerts.observe([GONE], T + 250)
    assert is_drift_alert(left, "eu-0")
    assert not is_drift_alert(left, "eu-1")
    again = DriftAlerts("eu-0")
    again.resume(left)
    (row,) = again.observe([], T + 9000)
    assert (row.alert_id, row.state) == (left.alert_id, "resolved")
    again.resume(left)
    assert _states(again.forget(T + 9999)) == [(left.alert_id, "resolved")]
    assert again.firing == ()


def test_long_names_still_have_an_alert_of_their_own() -> None:
    first, second = "a" * 199, "a" * 198 + "b"
    assert len(alert_id(first, "requests_running")) <= 200
    assert alert_id(first, "requests_running") != alert_id(second, "requests_running")
    alerts = DriftAlerts(first)
    alerts.observe([GONE], T)
    assert len(alerts.observe([GONE], T + 1)[0].summary) <= 500


def _watch(**more: object) -> EndpointWatch:
    said = {"instance": "eu-0", "engine": "vllm", "url": "http://h:1", "region": "eu", "pools": ["tiny@1"]}
    return EndpointWatch(EndpointConfig.model_validate(said | more), source="source-0")


def test_a_renamed_metric_of_a_real_page_and_its_return(capture: Capture) -> None:
    watch, good = _watch(), capture("under_load")
    bad = good.replace(b"vllm:num_requests_running", b"vllm:requests_in_batch")
    assert watch.take(Scrape(T, 1.0, good)).alerts == []
    alerts = [row for n in (1, 2, 3) for row in watch.take(Scrape(T + 250 * n, 1.0, bad)).alerts]
    assert _states(alerts) == [("engine-drift/eu-0/requests_running", "firing")]
    assert "vllm:num_requests_running" in alerts[0].summary
    down = Failure("refused", "http://h:1 can't be reached.")
    for n in (4, 5, 6):
        assert watch.take(Scrape(T + 250 * n, 1.0, failure=down)).alerts == []
    (row,) = watch.take(Scrape(T + 2000, 1.0, good)).alerts
    assert row.state == "resolved"


def test_a_histogram_that_changed_its_type_fires_though_it_is_read_once_a_second(capture: Capture) -> None:
    body = capture("after").replace(
        b"# TYPE vllm:time_to_first_token_seconds histogram", b"# TYPE vllm:time_to_first_token_seconds gauge"
    )
    watch = _watch()
    alerts = [row for n in range(12) for row in watch.take(Scrape(T + 250 * n, 1.0, body)).alerts]
    assert _states(alerts) == [("engine-drift/eu-0/ttft", "firing")]


def test_another_models_page_says_nothing_of_this_ones_metrics(capture: Capture) -> None:
    watch, good = _watch(served_model="tiny"), capture("under_load")
    bad = good.replace(b"vllm:num_requests_running", b"vllm:requests_in_batch")
    for n in range(3):
        watch.take(Scrape(T + 250 * n, 1.0, bad))
    assert watch.drift.firing == ("requests_running",)
    other = good.replace(b'model_name="tiny"', b'model_name="huge"')
    assert watch.take(Scrape(T + 2000, 1.0, other)).alerts == []
    assert watch.drift.firing == ("requests_running",)


def test_a_late_reading_is_drift_once_it_was_there_and_is_gone() -> None:
    watch = _watch(engine="tgi")
    early = b"# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n"
    used = early + b"# TYPE tgi_request_success counter\ntgi_request_success 3\n"
    assert watch.take(Scrape(T, 1.0, early)).problems == []
    assert watch.take(Scrape(T + 250, 1.0, used)).problems == []
    alerts = [row for n in (2, 3) for row in watch.take(Scrape(T + 250 * n, 1.0, early)).alerts]
    assert _states(alerts) == [("engine-drift/eu-0/requests_finished_total", "firing")]
