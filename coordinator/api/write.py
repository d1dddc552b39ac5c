"""POST /api/v1/write: the Prometheus remote-write protocol, version 1.0."""

from __future__ import annotations

import logging
import time
from collections import Counter
from functools import partial

from aiohttp import web

from coordinator.bodies import hold, read_body
from coordinator.context import CONTEXT
from coordinator.negotiation import REMOTE_WRITE, content_type
from coordinator.series import metadata, remote_write
from coordinator.series.remote_write import Cut, Limits
from shared.config import Settings
from shared.errors import BadData
from shared.telemetry import event

INLINE_BYTES_MAX = 512 << 10
"""A body that announces at most this many bytes is cut on the event loop (2,000 series take half a millisecond), a
larger one in a thread, which costs some 0.1 ms."""
SKIPPED_LOG_INTERVAL_S = 60.0
_SECOND_VERSION = "io.prometheus.write.v2"


class _Skipped:
    """Counts what requests carry that is not stored, and logs the counts at intervals."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at = -SKIPPED_LOG_INTERVAL_S

    def add(self, cut: Cut, metadata_left_out: int) -> None:
        self._counts.update(exemplars=cut.exemplars_left_out, histograms=cut.histograms, metadata=metadata_left_out)
        now = time.monotonic()
        if self._counts.total() and now - self._logged_at >= SKIPPED_LOG_INTERVAL_S:
            event(logging.WARNING, "remote write: skipped what is not stored", trace=False, **self._counts)
            self._counts.clear()
            self._logged_at = now


_skipped = _Skipped()


async def write(request: web.Request) -> web.Response:
    """204 when every sample and exemplar of the request is durable and visible, and its metadata is stored.

    400 names the series, exemplars and metadata that are not valid; the others of the request are stored nevertheless.
    On 503 any part of the request may have been stored: sending it again changes nothing.
    """
    context = request.app[CONTEXT]
    _check_type(request)
    cut = await _read(request)
    if cut.parts:
        await context.samples.write(cut.parts)
    context.telemetry.samples_in += cut.samples
    context.telemetry.exemplars_in += cut.exemplars
    context.telemetry.exemplars_refused += cut.exemplars_refused
    left_out = 0
    if cut.metadata:
        left_out = await metadata.keep(context.links, cut.metadata, context.settings.write_timeout_ms / 1000)
    _skipped.add(cut, left_out)
    if cut.refused_count:
        context.telemetry.series_refused += cut.refused_count
        more = cut.refused_count - len(cut.refused)
        tail = f"; and {more} more" if more else ""
        raise BadData(f"{cut.samples} samples stored, these refused: " + "; ".join(cut.refused) + tail)
    return web.Response(status=204)


async def _read(request: web.Request) -> Cut:
    """The request's body, which is let go, cut by shard."""
    context = request.app[CONTEXT]
    raw = await read_body(request, context.settings.body_bytes_max, encoding="snappy")
    size = remote_write.decompressed_size(raw)
    hold(request, min(size, context.settings.decompressed_bytes_max))  # more is refused before it is made
    if size <= INLINE_BYTES_MAX:
        return _cut(raw, context.settings)
    size_max = max(size, len(raw))
    return await context.decodings.run(size_max, partial(_cut, raw, context.settings))


def _cut(raw: bytes, settings: Settings) -> Cut:
    body = remote_write.decompress(raw, settings.decompressed_bytes_max)
    return remote_write.cut(body, settings.shards, Limits.of(settings))


def _check_type(request: web.Request) -> None:
    kind = content_type(request)
    if kind != REMOTE_WRITE:
        raise BadData(f"Content-Type is {kind!r}; it must be {REMOTE_WRITE}")
    if _SECOND_VERSION in request.headers.get("Content-Type", ""):
        raise BadData(f"Content-Type asks for remote write 2.0; this is version 1.0, {REMOTE_WRITE} without parameters")


ROUTES: list[web.RouteDef] = [web.post("/api/v1/write", write)]
