"""OpenTelemetry traces of requests. Off unless a collector is set; then nothing of OpenTelemetry is imported.

Spans go to a bounded queue, from which a thread of the library sends them: when the collector is slow or gone, spans
are dropped, and nobody waits. `OTEL_TRACES_SAMPLER` and the other variables of the OpenTelemetry specification apply.
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
"""What is not sent by then is lost."""
REMARK_INTERVAL_S = 30.0
"""A collector that is gone makes the library log the same line again and again: one in so many seconds is shown."""
ATTRIBUTE_MAX = 200

Attributes = Mapping[str, str | int]


class _Tracing:
    """The library's parts that are used here."""

    def __init__(self, url: str, process: str) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import SpanLimits, TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = {"service.name": "triptych", "service.version": version(), "service.instance.id": process}
        limits = SpanLimits(max_span_attribute_length=ATTRIBUTE_MAX)
        self.provider = TracerProvider(resource=Resource.create(named), span_limits=limits, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(url.rstrip("/") + "/v1/traces", timeout=EXPORT_TIMEOUT_S)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer: Any = self.provider.get_tracer("triptych")
        self.api: Any = trace
        self.propagator: Any = TraceContextTextMapPropagator()


_tracing: _Tracing | None = None


def load(url: str) -> None:
    """Import the library if it is needed; processes that are forked later have it too. Raises ConfigError when `url` is
    set and the library is not installed."""
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
    """Trace from now on, in this process and not in those that it forks, and send to the collector at `url`, or at
    OTEL_EXPORTER_OTLP_ENDPOINT. Neither, or `load` has found no library: do nothing."""
    global _tracing
    endpoint = _endpoint(url)
    if not endpoint or EXPORTER not in sys.modules:
        return
    _tracing = _Tracing(endpoint, process)
    remarks = logging.getLogger("opentelemetry")
    remarks.handlers[:], remarks.propagate = [_Remarks()], False
    event(logging.INFO, "traces are sent", collector=without_secrets(endpoint), process=process)


def _endpoint(url: str) -> str:
    return url or os.environ.get(ENDPOINT_VARIABLE, "")


def stop() -> None:
    """Send what is left, as far as that does not take long."""
    global _tracing
    if _tracing is not None:
        sending = threading.Thread(target=_tracing.provider.shutdown, daemon=True)
        sending.start()
        sending.join(STOP_WITHIN_S)
        _tracing = None


def is_on() -> bool:
    return _tracing is not None


@contextmanager
def span(name: str, parent: str, attributes: Attributes) -> Iterator[Any]:
    """A span around what a process does for another one; `parent`: a `traceparent` of W3C Trace Context. Spans that are
    made within are its children. To be called while `is_on`."""
    assert _tracing is not None
    api, context = _tracing.api, _tracing.propagator.extract({"traceparent": parent})
    # The text of an error may have parts of a query, so the library must not record it.
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
    """(A span of what another process is asked, the `traceparent` for it); None and an empty text where no trace is
    recorded. To be called while `is_on`, and ended by `end`."""
    assert _tracing is not None
    if not _is_recorded(_tracing):
        return None, ""
    current = _tracing.tracer.start_span(name, kind=_tracing.api.SpanKind.CLIENT, attributes=attributes)
    header: dict[str, str] = {}
    _tracing.propagator.inject(header, _tracing.api.set_span_in_context(current))
    return current, header["traceparent"]


def end(current: Any, seconds_ago: float = 0.0, *, failed: bool = False) -> None:
    """The span is over, or has been for so long."""
    if failed and _tracing is not None:
        current.set_status(_tracing.api.StatusCode.ERROR)
    current.end(time.time_ns() - int(seconds_ago * 1e9))


def past(name: str, began_s_ago: float, ended_s_ago: float) -> None:
    """A child of the current span that is over. To be called while `is_on`."""
    assert _tracing is not None
    if not _is_recorded(_tracing):
        return
    now_ns = time.time_ns()
    child = _tracing.tracer.start_span(name, start_time=now_ns - int(began_s_ago * 1e9))
    child.end(now_ns - int(ended_s_ago * 1e9))


def _is_recorded(own: _Tracing) -> bool:
    """Whether the current task or thread is within a span that is recorded. To make one that is not takes as long as to
    make one that is."""
    return bool(own.api.get_current_span().is_recording())


class _Remarks(logging.Handler):
    """What the library has to say, in the form of our log, and not too often."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_at = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        if now >= self._next_at:
            self._next_at = now + REMARK_INTERVAL_S
            event(logging.WARNING, "traces are lost", why=record.getMessage()[:500])
