"""Traces are off unless a collector is set, and a missing library is named."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared import tracing
from shared.errors import BadData, ConfigError


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracing.ENDPOINT_VARIABLE, raising=False)


def test_nothing_is_imported_unless_a_collector_is_set() -> None:
    program = (
        "import sys; from shared import tracing; tracing.load(''); tracing.start('', 'p'); tracing.stop(); "
        "assert not tracing.is_on(); assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_library_is_named_where_a_setting_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "EXPORTER", "no_such_library")
    with pytest.raises(ConfigError, match=r"TRIPTYCH_TRACES.*triptych\[traces\]"):
        tracing.load("http://127.0.0.1:4318")
    monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, "http://127.0.0.1:4318")
    tracing.load("")  # the variable may be meant for other programs
    tracing.start("", "p")
    assert not tracing.is_on()


def test_a_password_in_the_collector_s_url_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, object]] = []
    monkeypatch.setattr(tracing, "event", lambda level, text, **facts: told.append(facts))
    tracing.load("http://127.0.0.1:9")
    tracing.start("http://user:word@127.0.0.1:9/v1?key=word", "p")
    tracing.stop()
    assert told == [{"collector": "http://***@127.0.0.1:9/v1?***", "process": "p"}]


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this process. The collector is never reached: nothing listens on port 9."""
    tracing.load("http://127.0.0.1:9")
    tracing.start("http://127.0.0.1:9", "p")
    assert tracing._tracing is not None
    exporter = InMemorySpanExporter()
    tracing._tracing.provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    tracing.stop()
    assert not tracing.is_on()


def test_an_error_leaves_its_class_in_the_trace_and_not_its_text(exported: InMemorySpanExporter) -> None:
    with pytest.raises(BadData), tracing.span("GET /", "", {}):
        call, parent = tracing.begin("call m", {})
        tracing.end(call, failed=True)
        raise BadData("the secret")
    inner, outer = exported.get_finished_spans()
    assert inner.parent == outer.context and parent.split("-")[2] == f"{inner.context.span_id:016x}"
    assert dict(outer.attributes or {}) == {"error.type": "BadData"}
    assert not inner.status.is_ok and not outer.status.is_ok
    assert "secret" not in outer.to_json()


def test_beside_a_recorded_trace_nothing_is_made(exported: InMemorySpanExporter) -> None:
    assert tracing.begin("call m", {}) == (None, "")
    tracing.past("query waiting", 3.0, 1.0)
    with tracing.span("GET /", f"00-{'4' * 32}-{'5' * 16}-00", {}):
        assert tracing.begin("call m", {}) == (None, "")
        tracing.past("query waiting", 3.0, 1.0)
    assert not exported.get_finished_spans()


def test_spans_that_are_over_keep_their_times(exported: InMemorySpanExporter) -> None:
    with tracing.span("GET /", "not a parent", {}):
        tracing.past("query waiting", 3.0, 1.0)
        call, _ = tracing.begin("call m", {})
        tracing.end(call, -1.0)
    past, call, outer = exported.get_finished_spans()
    assert past.end_time - past.start_time == pytest.approx(2e9)
    assert call.end_time - time.time_ns() == pytest.approx(1e9, abs=0.5e9)
    assert outer.parent is None
