"""OpenTelemetry traces of requests. Unless a collector is set, they are off and OpenTelemetry is not imported.

Spans go to a bounded queue, from which a thread of the library sends them. If the collector is slow or down, spans are
dropped, and no request waits. `OTEL_TRACES_SAMPLER` and the other variables of the OpenTelemetry specification apply.
Attributes name routes, methods and workers, never queries, bodies, tokens or headers.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from shared.errors import ConfigError
from shared.telemetry import event
from shared.urls import without_secrets
from shared.version import version

ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
EXPORT_TIMEOUT_S = 2.0
STOP_WITHIN_S = 1.0
"""Spans that are not sent by then are lost."""
LOG_INTERVAL_S = 30.0
"""While the collector is down, the library logs the same line again and again. One per interval is shown."""
ATTRIBUTE_MAX = 200

Attributes = Mapping[str, str | int]


class _Tracing:
    """The objects of the library that are used here."""

    def __init__(self, url: str, process: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        attributes = {"service.name": "triptych", "service.version": version(), "service.instance.id": process}
        limits = SpanLimits(max_span_attribute_length=ATTRIBUTE_MAX)
        self.provider = TracerProvider(resource=Resource.create(attributes), span_limits=limits, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(url.rstrip("/") + "/v1/traces", timeout=EXPORT_TIMEOUT_S)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer: Any = self.provider.get_tracer("triptych")
        self.api: Any = trace
        self.propagator: Any = TraceContextTextMapPropagator()


_tracing: _Tracing | None = None


def load(url: str) -> None:
    """Import the library if it is needed; processes that are forked later have it too. Raises ConfigError if `url` is
    set but the library is not installed."""
    if not _endpoint(url):
        return
    try:
        importlib.import_module(EXPORTER)
    except ImportError as error:
        if url:
            raise ConfigError(
                "TRIPTYCH_TRACES is set, which needs the packages of `pip install 'triptych[traces]'`"
            ) from error
        event(logging.WARNING, f"{ENDPOINT_VARIABLE} is set, but without `triptych[traces]` there are no traces")


def start(url: str, process: str) -> None:
    """Start tracing in this process, but not in processes that it forks, and send spans to the collector at `url`, or
    else at OTEL_EXPORTER_OTLP_ENDPOINT. Does nothing if neither is set or `load` has not found the library."""
    global _tracing
    endpoint = _endpoint(url)
    if not endpoint or EXPORTER not in sys.modules:
        return
    _tracing = _Tracing(endpoint, process)
    library_logger = logging.getLogger("opentelemetry")
    library_logger.handlers[:], library_logger.propagate = [_LibraryLog()], False
    event(logging.INFO, "traces are sent", collector=without_secrets(endpoint), process=process)


def _endpoint(url: str) -> str:
    return url or os.environ.get(ENDPOINT_VARIABLE, "")


def stop() -> None:
    """Stop tracing. Waits at most STOP_WITHIN_S for the remaining spans to be sent."""
    global _tracing
    if _tracing is not None:
        shutdown = threading.Thread(target=_tracing.provider.shutdown, daemon=True)
        shutdown.start()
        shutdown.join(STOP_WITHIN_S)
        _tracing = None


def is_on() -> bool:
    return _tracing is not None


@contextmanager
def span(name: str, parent: str, attributes: Attributes) -> Iterator[Any]:
    """A span around work that this process does for another one. `parent`: the `traceparent` of W3C Trace Context.
    Spans created within are its children. Call this only while `is_on`."""
    assert _tracing is not None
    api, context = _tracing.api, _tracing.propagator.extract({"traceparent": parent})
    # The text of an error may contain parts of a query, so the library must not record it.
    with _tracing.tracer.start_as_current_span(
        name, context, api.SpanKind.SERVER, attributes, record_exception=False, set_status_on_exception=False
    ) as current:
        try:
            yield current
        except BaseException as error:
            current.set_status(api.StatusCode.ERROR)
            current.set_attribute("error.type", type(error).__name__)
            raise


def begin(name: str, attributes: Attributes) -> tuple[Any, str]:
    """Begin a span of a call to another process. Returns (the span, the `traceparent` for the call), or (None, "") if
    no trace is recorded. Call this only while `is_on`; `end` ends the span."""
    assert _tracing is not None
    if not _is_recorded(_tracing):
        return None, ""
    current = _tracing.tracer.start_span(name, kind=_tracing.api.SpanKind.CLIENT, attributes=attributes)
    header: dict[str, str] = {}
    _tracing.propagator.inject(header, _tracing.api.set_span_in_context(current))
    return current, header["traceparent"]


def end(current: Any, seconds_ago: float = 0.0, *, failed: bool = False) -> None:
    """End the span now, or at a time in the past."""
    if failed and _tracing is not None:
        current.set_status(_tracing.api.StatusCode.ERROR)
    current.end(time.time_ns() - int(seconds_ago * 1e9))


def past(name: str, began_s_ago: float, ended_s_ago: float) -> None:
    """Add a finished child to the current span. Call this only while `is_on`."""
    assert _tracing is not None
    if not _is_recorded(_tracing):
        return
    now_ns = time.time_ns()
    child = _tracing.tracer.start_span(name, start_time=now_ns - int(began_s_ago * 1e9))
    child.end(now_ns - int(ended_s_ago * 1e9))


def _is_recorded(tracing: _Tracing) -> bool:
    """Whether the current task or thread is within a recorded span. Creating a span that is not recorded takes as long
    as creating one that is."""
    return bool(tracing.api.get_current_span().is_recording())


class _LibraryLog(logging.Handler):
    """Writes the library's warnings to our log, at a limited rate."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + LOG_INTERVAL_S
            event(logging.WARNING, "traces are lost", why=record.getMessage()[:500])
