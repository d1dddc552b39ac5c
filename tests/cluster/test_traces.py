"""Traces: the spans of a request in all processes, and a collector that is gone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed
from tests.forked_cluster import ForkedCluster

NOW = 1_700_000_000
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OFTEN = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@dataclass
class Collector:
    """Receives OTLP over HTTP. `spans`: (process, span) of all that came."""

    spans: list[tuple[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        spans = self.spans

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                body = self.rfile.read(int(self.headers["Content-Length"]))
                for group in ExportTraceServiceRequest.FromString(body).resource_spans:
                    named = {entry.key: entry.value.string_value for entry in group.resource.attributes}
                    for scope in group.scope_spans:
                        spans.extend((named["service.instance.id"], span) for span in scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def of_trace(self, trace: str, least: int) -> list[tuple[str, Any]]:
        """The spans of the trace, once there are so many."""
        give_up = time.monotonic() + 10
        while True:
            found = [(process, span) for process, span in list(self.spans) if span.trace_id.hex() == trace]
            if len(found) >= least:
                return found
            assert time.monotonic() < give_up, [span.name for _, span in found]
            time.sleep(0.02)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    one = Collector()
    yield one
    one.server.shutdown()
    one.server.server_close()


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {"TRIPTYCH_TRACES": collector.url, **OFTEN}
    cluster = ForkedCluster(tmp_path_factory.mktemp("traced"), settings=settings).start()
    series = [({"__name__": "traced_total", "i": str(i)}, [(1000 * NOW, 1.0)]) for i in range(20)]
    assert cluster.request("POST", "/api/v1/write", compressed(series), HEADERS).status == 204
    yield cluster
    cluster.kill()


def test_a_query_is_traced_through_all_processes(traced: Cluster, collector: Collector) -> None:
    path = f"/api/v1/query?query=sum(traced_total)&time={NOW}"
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "Authorization": "Bearer secret-token"}
    answer = traced.request("GET", path, None, headers)
    assert answer.status == 200 and answer.headers["x-request-id"] == TRACE
    spans = collector.of_trace(TRACE, 1 + 6 + 2 + 2)
    by_id = {span.span_id: span for _, span in spans}
    (request,) = [span for process, span in spans if span.name == "GET /api/v1/query"]
    assert request.parent_span_id.hex() == PARENT
    attributes = {entry.key: entry.value for entry in request.attributes}
    assert attributes["http.response.status_code"].int_value == 200
    assert (attributes["http.route"].string_value, attributes["triptych.area"].string_value) == (
        "/api/v1/query",
        "metrics",
    )
    calls = [span for _, span in spans if span.name == "call query.evaluate"]
    assert len(calls) == 2 and all(call.parent_span_id == request.span_id for call in calls)
    own = [(process, span) for process, span in spans if span.name == "query.evaluate"]
    assert sorted(process for process, _ in own) == ["worker-0", "worker-1"]
    for _, span in own:
        call = by_id[span.parent_span_id]
        assert call in calls
        assert call.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
    states = [span for _, span in spans if span.name.startswith("query ") and span.parent_span_id == request.span_id]
    assert [span.name for span in sorted(states, key=lambda span: span.start_time_unix_nano)] == [
        f"query {state}" for state in ("planning", "waiting", "running", "merging", "rendering", "sending")
    ]
    everything = " ".join(str(span) for _, span in spans)
    assert "secret-token" not in everything and "traced_total" not in everything


def test_a_request_that_its_client_does_not_sample_leaves_no_span(traced: Cluster, collector: Collector) -> None:
    unsampled, sampled = "1" * 32, "2" * 32
    for trace, flag in ((unsampled, "00"), (sampled, "01")):
        headers = {"traceparent": f"00-{trace}-{PARENT}-{flag}"}
        assert traced.request("GET", "/api/v1/labels", None, headers).status == 200
    collector.of_trace(sampled, 5)
    assert unsampled not in {span.trace_id.hex() for _, span in collector.spans}


def test_a_collector_that_is_gone_harms_nobody(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It takes connections and answers nothing: worse than none."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = {
            "TRIPTYCH_TRACES": f"http://127.0.0.1:{silent.getsockname()[1]}",
            **OFTEN,
            "OTEL_BSP_MAX_QUEUE_SIZE": "20",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10",
        }
        cluster = ForkedCluster(tmp_path_factory.mktemp("untraced"), settings=settings).start()
        try:
            for _ in range(40):
                started = time.monotonic()
                assert cluster.get("/api/v1/labels").status == 200
                assert time.monotonic() - started < 2
            assert cluster.log("coordinator").count("traces are lost") <= 1
            assert cluster.stop() < 5
        finally:
            cluster.kill()
