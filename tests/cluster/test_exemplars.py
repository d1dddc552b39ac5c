"""Exemplars: remote write brings them, /api/v1/query_exemplars has them."""

from __future__ import annotations

import http.server
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import snappy

from loadtest.harness.cluster import Cluster, Response
from loadtest.harness.remote_write_bodies import HEADERS, HEADERS_V2
from tests.cluster.prometheus import needs_prometheus, prometheus, scraping
from tests.unit.exemplar_requests import Exemplar, body, body_v2, request_v2

T0_S = 1_700_000_000
ALL_TIME = {"start": str(T0_S), "end": str(T0_S + 1000)}
_numbers = itertools.count()

Sent = tuple[dict[str, str], list[tuple[int, float]], list[Exemplar]]


def send(cluster: Cluster, *series: Sent) -> Response:
    return cluster.request("POST", "/api/v1/write", snappy.compress(body(series)), HEADERS)


def send_v2(cluster: Cluster, raw: bytes) -> Response:
    return cluster.request("POST", "/api/v1/write", snappy.compress(raw), HEADERS_V2)


def at(second: float, trace: str = "abc", value: float = 6.0) -> Exemplar:
    return {"trace_id": trace}, value, int((T0_S + second) * 1000)


def shown(second: float, trace: str = "abc", value: str = "6") -> dict[str, Any]:
    return {"labels": {"trace_id": trace}, "value": value, "timestamp": T0_S + second}


def found(cluster: Cluster, query: str, **parameters: str) -> dict[str, Any]:
    answer = cluster.get("/api/v1/query_exemplars", query=query, **parameters)
    assert answer.status == 200, answer.body
    return answer.json()


@pytest.fixture
def name() -> str:
    return f"exemplary_{next(_numbers)}"


def test_exemplars_are_answered_by_the_selectors_of_a_query(cluster: Cluster, name: str) -> None:
    series = [{"__name__": name, "le": str(i)} for i in range(8)]
    assert (
        send(cluster, *((own, [(T0_S * 1000, 1.0)], [at(i), at(i + 0.5)]) for i, own in enumerate(series))).status
        == 204
    )
    assert send(cluster, ({"__name__": f"{name}_other"}, [], [at(1, 'q"\\\x01é', float("-inf"))])).status == 204
    assert found(
        cluster, f'sum by (le) (rate({name}[5m] offset 1h)) > {name}_other * {name}{{le="1"}}', **ALL_TIME
    ) == {
        "status": "success",
        "data": [
            *({"seriesLabels": own, "exemplars": [shown(i), shown(i + 0.5)]} for i, own in enumerate(series)),
            {"seriesLabels": {"__name__": f"{name}_other"}, "exemplars": [shown(1, 'q"\\\x01é', "-Inf")]},
        ],
    }
    own = {"query": f"{name}", "start": str(T0_S + 2), "end": str(T0_S + 2.5)}
    posted = cluster.post_form("/api/v1/query_exemplars", **own).json()
    assert posted["data"] == [{"seriesLabels": series[2], "exemplars": [shown(2), shown(2.5)]}]
    assert found(cluster, name)["data"] == found(cluster, name, **ALL_TIME)["data"]


def summed(selectors: int, first: int = 0) -> str:
    """A query of so many selectors that is not nested deeply."""
    if selectors == 1:
        return f"m{first}"
    half = selectors // 2
    return f"({summed(half, first)} + {summed(selectors - half, first + half)})"


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({}, "parameter 'query' is missing"),
        ({"query": "sum("}, "parse error"),
        ({"query": "{}"}, "at least one non-empty matcher"),
        ({"query": "m", "start": "x"}, "parameter 'start' is 'x'"),
        ({"query": "m", "start": "2", "end": "1"}, "'end' is '1'; it must not be before 'start'"),
        ({"query": summed(1001)}, "1001 different selectors; the limit is 1000"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(cluster: Cluster, parameters: dict[str, str], error: str) -> None:
    answer = cluster.post_form("/api/v1/query_exemplars", **parameters)
    assert answer.status == 400
    assert error in answer.json()["error"], answer.body


def test_a_query_without_selectors_has_no_exemplars(cluster: Cluster) -> None:
    assert found(cluster, "1 + time()") == {"status": "success", "data": []}


def test_bad_exemplars_are_named_and_the_rest_is_stored(cluster: Cluster, name: str) -> None:
    series = {"__name__": name}
    long = ({"trace_id": "x" * 121}, 1.0, T0_S * 1000)
    answer = send(cluster, (series, [(T0_S * 1000, 1.0)], [at(1), long, at(2)]), ({"job": "a"}, [], [at(1)]))
    assert answer.status == 400
    error = answer.json()["error"]
    assert "1 samples stored" in error
    assert f'series 0 {{__name__="{name}"}}: the labels of an exemplar have 129 characters; the limit is 128' in error
    assert 'series 1 {job="a"}: it has no label __name__' in error
    assert found(cluster, name)["data"] == [{"seriesLabels": series, "exemplars": [shown(1), shown(2)]}]


def test_version_2_stores_the_same_and_names_what_is_wrong(cluster: Cluster, name: str) -> None:
    own: list[Sent] = [({"__name__": name, "i": str(i)}, [(T0_S * 1000, 1.0)] * (i % 2), [at(i)]) for i in range(8)]
    answer = send_v2(cluster, body_v2(own))
    assert (answer.status, answer.headers["x-prometheus-remote-write-exemplars-written"]) == (204, "8")
    assert send(cluster, *own).status == 204  # the same ones, which are there already
    request = request_v2([({"__name__": name, "i": "0"}, [(T0_S * 1000, 2.0)], [at(9), at(10)])])
    request.timeseries[0].exemplars[0].labels_refs[1] = 99
    answer = send_v2(cluster, request.SerializeToString())
    assert (answer.status, answer.headers["x-prometheus-remote-write-exemplars-written"]) == (400, "1")
    assert f'series 0 {{__name__="{name}", i="0"}}: a label reference of an exemplar is 99' in answer.json()["error"]
    exemplars = {str(i): [shown(i)] for i in range(8)}
    exemplars["0"].append(shown(10))
    assert {own["seriesLabels"]["i"]: own["exemplars"] for own in found(cluster, name)["data"]} == exemplars


@pytest.mark.parametrize("sent_body", [body, body_v2])
def test_exemplars_that_are_switched_off_are_not_acknowledged_by_version_2(new_cluster, sent_body) -> None:
    cluster = new_cluster(shards=2, workers=1, settings={"TRIPTYCH_EXEMPLARS_BYTES": "0"}).start()
    raw = sent_body([({"__name__": "m"}, [(T0_S * 1000, 1.0)], [at(1)])])
    headers = HEADERS if sent_body is body else HEADERS_V2
    answer = cluster.request("POST", "/api/v1/write", snappy.compress(raw), headers)
    assert answer.headers["x-prometheus-remote-write-exemplars-written"] == "0"
    if sent_body is body:
        assert answer.status == 204
    else:
        assert answer.status == 400
        assert answer.json()["error"] == "1 samples stored, 1 exemplars not, because TRIPTYCH_EXEMPLARS_BYTES is 0"


def test_a_deletion_takes_exemplars_too(new_cluster) -> None:
    cluster = new_cluster(shards=2, workers=1, settings={"TRIPTYCH_ADMIN_API": "true"}).start()
    assert (
        send(cluster, ({"__name__": "a"}, [], [at(1)]), ({"__name__": "b"}, [(T0_S * 1000, 1.0)], [at(1)])).status
        == 204
    )
    deletion = {"match[]": ["a", "b"], "start": str(T0_S + 1), "end": str(T0_S + 1)}
    assert cluster.post_form("/api/v1/admin/tsdb/delete_series", **deletion).status == 204
    assert found(cluster, '{__name__=~"a|b"}')["data"] == []
    assert len(cluster.get("/api/v1/series", **{"match[]": "b"}).json()["data"]) == 1


def test_acknowledged_exemplars_survive_the_death_of_every_process(new_cluster) -> None:
    """Heads are sealed all the time, so that exemplars are in the log, in rows, or in both."""
    settings = {"TRIPTYCH_HEAD_BYTES": "20000", "TRIPTYCH_BLOCK_WINDOW": "2s"}
    cluster = new_cluster(shards=4, workers=2, settings=settings).start()
    for round_ in range(2):
        for number in range(10):
            second = 10 * round_ + number
            series = ({"__name__": "m", "i": str(i)} for i in range(20))
            samples = [((T0_S + second) * 1000, 1.0)]
            assert send(cluster, *((own, samples, [at(second)]) for own in series)).status == 204
        cluster.kill()
        cluster.start()
        data = found(cluster, "m", partial_response="false")["data"]
        assert len(data) == 20
        for own in data:
            assert own["exemplars"] == [shown(second) for second in range(10 * (round_ + 1))]


def test_answers_are_partial_without_a_worker_and_say_so(new_cluster) -> None:
    cluster = new_cluster(shards=4, workers=2).start()
    assert send(cluster, *(({"__name__": "m", "i": str(i)}, [], [at(1)]) for i in range(40))).status == 204
    with cluster.without_worker():
        answer = found(cluster, "m")
        assert 0 < len(answer["data"]) < 40
        assert len(answer["warnings"]) == 2
        assert cluster.get("/api/v1/query_exemplars", query="m", partial_response="false").status == 503


class _Target(http.server.BaseHTTPRequestHandler):
    """A target whose one series has an exemplar, in OpenMetrics."""

    def do_GET(self) -> None:
        text = b'# TYPE hits counter\nhits_total 3 # {trace_id="abc",span_id="def"} 1.5 1700000000.25\n# EOF\n'
        self.send_response(200)
        self.send_header("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nobody reads it."""


@needs_prometheus
def test_prometheus_sends_the_exemplars_of_its_targets(cluster: Cluster, tmp_path: Path) -> None:
    target = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Target)
    threading.Thread(target=target.serve_forever, daemon=True).start()
    config = scraping(f"127.0.0.1:{target.server_port}", {"url": f"{cluster.url}/api/v1/write", "send_exemplars": True})
    try:
        with prometheus(tmp_path, config, feature="exemplar-storage") as sender:
            data = sender.wait_for(lambda: found(cluster, "hits_total")["data"])
    finally:
        target.shutdown()
    assert [own["seriesLabels"]["job"] for own in data] == ["scraped"]
    own_labels = {"trace_id": "abc", "span_id": "def"}
    assert data[0]["exemplars"] == [{"labels": own_labels, "value": "1.5", "timestamp": 1700000000.25}]
