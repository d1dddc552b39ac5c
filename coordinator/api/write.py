"""POST /api/v1/write: the Prometheus remote-write protocol, versions 1.0 and 2.0.

The parameter `proto` of the Content-Type tells which message the body is. Specifications:
https://prometheus.io/docs/specs/prw/remote_write_spec/ and …/remote_write_spec_2_0/.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial

import numpy as np
from aiohttp import web

from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import REMOTE_WRITE, content_type, content_type_parameter
from coordinator.http.bodies import hold, read_body
from coordinator.series import decompression, known_samples, lessons, metadata, remote_write, remote_write_v2
from coordinator.series.lessons import Receipt
from coordinator.series.remote_write import NO_REFERENCES, Limits
from coordinator.series.remote_write_v2 import Survey
from coordinator.series.request_templates import NO_TEMPLATES, Instance, RequestTemplates
from coordinator.series.series_references import SeriesReferences
from coordinator.series.split_request import SplitRequest
from shared.errors import BadData, TriptychError, Unavailable
from shared.settings import Settings
from shared.telemetry import event

INLINE_BYTES_MAX = 512 << 10
"""A body that announces at most this many bytes is split on the event loop (2,000 series take half a millisecond), a
larger one in a thread, which costs some 0.1 ms."""
SKIPPED_LOG_INTERVAL_S = 60.0
INLINE_STEPS_MAX = 500
"""A request with more series and metadata than this, which interpreted code reads in some 2 to 20 µs each, is split in
a thread, too."""
INLINE_LESSON_MAX = 5_000
"""New series of a request whose numbers are learned on the event loop, at some 0.1 µs each; more are learned in a
thread."""
HEADERS_CACHED = 64
MESSAGES = ("prometheus.WriteRequest", remote_write_v2.MESSAGE)
"""The messages that a body can be, of versions 1.0 and 2.0; the first one if the Content-Type has no `proto`."""
Again = Callable[[], Awaitable[SplitRequest]]
"""Splits a request again, with the labels of all series."""


class _Skipped:
    """Counts the parts of requests that are not stored, and logs the counts at intervals."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at = -SKIPPED_LOG_INTERVAL_S

    def add(self, split_request: SplitRequest, metadata_left_out: int) -> None:
        self._counts.update(exemplars=split_request.exemplars_left_out, metadata=metadata_left_out)
        now = time.monotonic()
        if self._counts.total() and now - self._logged_at >= SKIPPED_LOG_INTERVAL_S:
            event(logging.WARNING, "remote write: skipped what is not stored", trace=False, **self._counts)
            self._counts.clear()
            self._logged_at = now


_skipped = _Skipped()


@lru_cache(HEADERS_CACHED)
def headers_of(samples: int, histograms: int, exemplars: int) -> Mapping[str, str]:
    """The headers that tell a sender how much was stored. They must not be changed."""
    counts = {"Samples": samples, "Histograms": histograms, "Exemplars": exemplars}
    return {f"X-Prometheus-Remote-Write-{what}-Written": str(count) for what, count in counts.items()}


@dataclass(frozen=True, slots=True)
class Body:
    """`raw`: as it was sent; `size`: the bytes that it says it decompresses to. `hold` counts more bytes as held for
    its request, and raises Overloaded. `raw` and `size` are counted already."""

    raw: bytes
    size: int
    hold: Callable[[int], None]


async def write(request: web.Request) -> web.Response:
    """204 when every sample, histogram and exemplar of the request is durable and visible, and its metadata is stored.

    400 names the series, histograms, exemplars and metadata that are not valid; all others in the request are stored.
    In version 2.0, which must not drop anything silently, a request with exemplars is answered with 400 where they are
    switched off. On 503 any part of the request may have been stored: sending it again changes nothing.
    """
    is_second = _message(request) == remote_write_v2.MESSAGE
    try:
        body = await _held_body(request)
    except TriptychError as error:
        tell(error, headers_of(0, 0, 0))
        raise
    return web.Response(status=204, headers=await serve(request.app[CONTEXT], body, is_second=is_second))


async def serve(context: Context, body: Body, *, is_second: bool) -> Mapping[str, str]:
    """Split and store a request, of version 2.0 if `is_second`. Returns the headers that say how much was stored. The
    errors that it raises have these headers, too; they are those of `write`."""
    return await finish(context, body, begin(context, body, is_second=is_second), is_second=is_second)


def begin(context: Context, body: Body, *, is_second: bool) -> SplitRequest | Awaitable[SplitRequest]:
    """Split a request, as `serve` does: at once if that is quick, otherwise when the result is awaited."""
    try:
        return _split_second(context, body) if is_second else _split_first(context, body)
    except TriptychError as error:
        tell(error, headers_of(0, 0, 0))
        raise


async def finish(
    context: Context, body: Body, begun: SplitRequest | Awaitable[SplitRequest], *, is_second: bool
) -> Mapping[str, str]:
    """The rest of `serve`, for a request that has begun."""
    try:
        split_request = begun if isinstance(begun, SplitRequest) else await begun
    except TriptychError as error:
        tell(error, headers_of(0, 0, 0))
        raise
    return await written(context, split_request, split_again(context, body, is_second=is_second), is_second=is_second)


def split_again(context: Context, body: Body, *, is_second: bool) -> Again:
    """Returns a function that splits this request with the labels of all series."""
    split_all = partial(_split_whole, body.raw, context.settings, is_second)
    return partial(context.decodings.run, max(body.size, len(body.raw)), split_all)


def tell(error: TriptychError, headers: Mapping[str, str]) -> None:
    """Set the headers of this error so that they say how much of the refused request was stored."""
    if error.status < 500:  # for higher statuses it is not known
        error.headers = headers


async def written(
    context: Context, split_request: SplitRequest, again: Again, *, is_second: bool = False
) -> Mapping[str, str]:
    """Store a split request with its metadata, and count it. Returns the headers that say how much was stored. If some
    of the request was refused, raises BadData with these headers."""
    if split_request.known is not None:
        await store(context, split_request, again)
        return count_known(context, split_request)
    headers = headers_of(0, 0, 0)
    try:
        if split_request.parts:
            await store(context, split_request, again)
        headers = headers_of(split_request.samples, split_request.histograms, split_request.exemplars)
        context.telemetry.samples_in += split_request.samples + split_request.histograms
        context.telemetry.histograms_in += split_request.histograms
        context.telemetry.histograms_refused += split_request.histograms_refused
        context.telemetry.exemplars_in += split_request.exemplars
        context.telemetry.exemplars_refused += split_request.exemplars_refused
        await keep_metadata(context, split_request)
        problem = _problem(split_request, is_second)
        if problem:
            context.telemetry.series_refused += split_request.refused_count
            histograms = f" and {split_request.histograms} histograms" if split_request.histograms else ""
            raise BadData(f"{split_request.samples} samples{histograms} stored, {problem}")
    except TriptychError as error:
        tell(error, headers)
        raise
    return headers


def count_known(context: Context, split_request: SplitRequest) -> Mapping[str, str]:
    """As `written`, after the samples are stored, for a split request that has only known series."""
    context.telemetry.samples_in += split_request.samples
    return headers_of(split_request.samples, 0, 0)


async def store(context: Context, split_request: SplitRequest, again: Again) -> None:
    """Store a split request, and keep the numbers of series that the shards gave. A shard that has been opened again
    does not store samples under its earlier numbers, which are stale. They are split with labels and sent once more."""
    await learn_from(
        context, split_request, again, await context.samples.write(split_request.parts, split_request.known)
    )


async def learn_from(context: Context, split_request: SplitRequest, again: Again, receipt: Receipt) -> None:
    """Process the receipt of the frames of a request; see `store`."""
    context.telemetry.series_by_number += split_request.known_series
    if not receipt.epochs:
        return
    if receipt.stale:
        context.telemetry.stale_writes += 1
        stale = {shard for shard, _ in receipt.stale}
        with_labels = await again()
        await context.samples.write({shard: frames for shard, frames in with_labels.parts.items() if shard in stale})
    learn = partial(lessons.learn, split_request.lessons, context.series_references, receipt)
    series = sum(len(lesson.walk.table) for lesson in split_request.lessons)
    if series <= INLINE_LESSON_MAX and not context.series_references.is_crowded:
        learn()
    else:
        with suppress(Unavailable):  # the service has too much else to do: the numbers are learned another time
            await context.decodings.run(0, learn)


async def keep_metadata(context: Context, split_request: SplitRequest) -> None:
    """Store the metadata of a split request."""
    left_out = 0
    if split_request.metadata:
        left_out = await metadata.keep(context.links, split_request.metadata, context.settings.write_timeout_ms / 1000)
        # Including those that found no room: they are sent again when they are forgotten here.
        context.known_metadata.add(split_request.metadata_keys)
    _skipped.add(split_request, left_out)


def _problem(split_request: SplitRequest, is_second: bool) -> str:
    """Why some of a request was not stored; "" if its sender need not know."""
    problems = []
    if is_second and split_request.exemplars_left_out:
        problems.append(f"{split_request.exemplars_left_out} exemplars not, because TRIPTYCH_EXEMPLARS_BYTES is 0")
    if split_request.refused_count:
        more = split_request.refused_count - len(split_request.refused)
        tail = f"; and {more} more" if more else ""
        problems.append("these refused: " + "; ".join(split_request.refused) + tail)
    return ", ".join(problems)


def _split_first(context: Context, body: Body) -> SplitRequest | Awaitable[SplitRequest]:
    """A request of version 1.0, split by shard."""
    settings, references = context.settings, context.series_references
    if body.size > INLINE_BYTES_MAX:
        split = partial(_split, body.raw, settings, references)
        return context.decodings.run(max(body.size, len(body.raw)), split)
    data = decompression.decompress(body.raw, settings.decompressed_bytes_max)
    known = known_samples.read(data, settings.shard_count(), references)
    if known is not None:
        return SplitRequest.of_known(known)
    limits = Limits.of(settings)
    walked = remote_write.walk(data, limits, references)
    split = partial(remote_write.split_walked, data, walked, settings.shard_count(), limits)
    return split() if remote_write.steps(walked) <= INLINE_STEPS_MAX else context.decodings.run(len(data), split)


def _split_second(context: Context, body: Body) -> SplitRequest | Awaitable[SplitRequest]:
    """A request of version 2.0, split by shard."""
    context.known_metadata.forget()
    if body.size > INLINE_BYTES_MAX:
        return _split_surveyed(context, body, None)
    surveyed = _survey(body.raw, context)
    if isinstance(surveyed, Instance) and _is_quick(surveyed):
        split_request = surveyed.split(context.settings.shard_count())
        if split_request is not None:
            return split_request
        surveyed = _survey(body.raw, context, NO_TEMPLATES)
    return _split_surveyed(context, body, surveyed)


async def _split_surveyed(context: Context, body: Body, surveyed: Survey | Instance | None) -> SplitRequest:
    """The rest of `_cut_second`. `surveyed`: its survey, if it has been made. The memory of its labels counts as held
    as soon as it is known."""
    settings = context.settings
    run_large = partial(context.decodings.run, max(body.size, len(body.raw)))
    if surveyed is None:
        surveyed = await run_large(partial(_survey, body.raw, context))
    if isinstance(surveyed, Instance):
        split_request = await context.decodings.run(
            surveyed.bytes_total, partial(surveyed.split, settings.shard_count())
        )
        if split_request is not None:
            return split_request
        survey = partial(_survey, body.raw, context, NO_TEMPLATES)
        surveyed = survey() if body.size <= INLINE_BYTES_MAX else await run_large(survey)
        assert isinstance(surveyed, Survey)
    body.hold(surveyed.resolved_bytes)
    split_whole = partial(remote_write_v2.split, surveyed, settings.shard_count(), Limits.of(settings))
    return split_whole() if _is_quick(surveyed) else await context.decodings.run(surveyed.bytes_total, split_whole)


def _is_quick(surveyed: Survey | Instance) -> bool:
    """Whether the request is split on the event loop."""
    return surveyed.bytes_total <= INLINE_BYTES_MAX and surveyed.steps <= INLINE_STEPS_MAX


async def _held_body(request: web.Request) -> Body:
    settings = request.app[CONTEXT].settings
    raw = await read_body(request, settings.body_bytes_max, encoding="snappy")
    size = decompression.decompressed_size(raw)
    hold(request, min(size, settings.decompressed_bytes_max))  # larger bodies are refused before they are decompressed
    return Body(raw, size, partial(hold, request))


def _split(raw: bytes, settings: Settings, references: SeriesReferences) -> SplitRequest:
    """Split a large request of version 1.0. Not for the event loop's thread."""
    body = decompression.decompress(raw, settings.decompressed_bytes_max)
    known = known_samples.read(body, settings.shard_count(), references, large=True)
    if known is not None:
        return SplitRequest.of_known(known)
    return remote_write.split(body, settings.shard_count(), Limits.of(settings), references)


def _survey(raw: bytes, context: Context, templates: RequestTemplates | None = None) -> Survey | Instance:
    settings, known = context.settings, context.known_metadata.keys
    templates = templates or context.request_templates
    body, bytes_max = decompression.decompress(raw, settings.decompressed_bytes_max), settings.decompressed_bytes_max
    instance = templates.read(np.frombuffer(body, np.uint8), bytes_max, known)
    if instance is not None:
        return instance
    return remote_write_v2.survey(
        body, Limits.of(settings), bytes_max, known, context.known_labels, context.series_references, templates
    )


def _split_whole(raw: bytes, settings: Settings, is_second: bool) -> SplitRequest:
    """Split with the labels of all series."""
    if not is_second:
        return _split(raw, settings, NO_REFERENCES)
    bytes_max, limits = settings.decompressed_bytes_max, Limits.of(settings)
    surveyed = remote_write_v2.survey(decompression.decompress(raw, bytes_max), limits, bytes_max)
    return remote_write_v2.split(surveyed, settings.shard_count(), limits)


def _message(request: web.Request) -> str:
    """Which message of MESSAGES the body is. Raises BadData for anything else."""
    kind = content_type(request)
    if kind != REMOTE_WRITE:
        raise BadData(f"Content-Type is {kind!r}; it must be {REMOTE_WRITE}")
    message = content_type_parameter(request, "proto", MESSAGES[0])
    if message not in MESSAGES:
        raise BadData(f"Content-Type has proto={message[:200]!r}; it must be {' or '.join(MESSAGES)}, or missing")
    return message


ROUTES: list[web.RouteDef] = [web.post("/api/v1/write", write)]
