"""Reads the answer of a target into samples, in the format that its Content-Type names."""

from __future__ import annotations

from coordinator.scraping import protobuf_families
from coordinator.scraping.jobs import PROTOCOLS
from coordinator.scraping.target_series import Samples, TargetSeries
from shared.errors import BadData

PROTOBUF, OPENMETRICS, TEXT = "application/vnd.google.protobuf", "application/openmetrics-text", "text/plain"


def read(
    series: TargetSeries,
    body: bytes,
    content_type: str,
    fallback: str,
    time_ms: int,
    *,
    with_histograms: bool,
    keeps_classic: bool,
    honors_times: bool,
) -> Samples:
    """The samples of an answer. `fallback`: the protocol of PROTOCOLS that it is in if its Content-Type names none of
    them, or "". `honors_times`: as in `protobuf_families.read`; the text formats always use the target's times. Raises
    BadData for an answer that cannot be read."""
    kind = _kind(content_type) or _kind(PROTOCOLS.get(fallback, ""))
    if kind == PROTOBUF:
        return protobuf_families.read(
            series,
            body,
            time_ms,
            with_histograms=with_histograms,
            keeps_classic=keeps_classic,
            honors_times=honors_times,
        )
    if kind:
        return series.read_text(body, is_openmetrics=kind == OPENMETRICS, time_ms=time_ms)
    raise BadData(
        f"its Content-Type is {content_type[:100]!r}; it must be {TEXT}, {OPENMETRICS} or {PROTOBUF}, or the job must "
        "have a fallback_scrape_protocol"
    )


def _kind(content_type: str) -> str:
    kind, _, parameters = content_type.partition(";")
    kind = kind.strip().lower()
    if kind == PROTOBUF:
        named = dict(part.strip().partition("=")[::2] for part in parameters.split(";"))
        is_families = named.get("proto") == "io.prometheus.client.MetricFamily" and named.get("encoding") == "delimited"
        return PROTOBUF if is_families else ""
    return kind if kind in (OPENMETRICS, TEXT) else ""
