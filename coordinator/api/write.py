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

from coordinator.bodies import hold, read_body
from coordinator.context import CONTEXT, Context
from coordinator.negotiation import REMOTE_WRITE, content_type, content_type_parameter
from coordinator.series import decompression, known_samples, lessons, metadata, remote_write, remote_write_v2
from coordinator.series.lessons import Receipt
from coordinator.series.remote_write import NO_REFERENCES, Cut, Limits
from coordinator.series.remote_write_v2 import Survey
from coordinator.series.request_templates import NO_TEMPLATES, Instance, RequestTemplates
from coordinator.series.series_references import SeriesReferences
from shared.config import Settings
from shared.errors import BadData, TriptychError, Unavailable
from shared.telemetry import event

INLINE_BYTES_MAX = 512 << 10
"""A body that announces at most this many bytes is cut on the event loop (2,000 series take half a millisecond), a
larger one in a thread, which costs some 0.1 ms."""
SKIPPED_LOG_INTERVAL_S = 60.0
INLINE_STEPS_MAX = 500
"""A request with more series and metadata than this that interpreted code reads, in some 2 to 20 µs each, is cut in a
thread too."""
INLINE_LESSON_MAX = 5_000
"""Series of a request whose numbers are learned on the event loop, at some 0.1 µs each; more are in a thread."""
HEADERS_CACHED = 64
MESSAGES = ("prometheus.WriteRequest", remote_write_v2.MESSAGE)
"""What a body can be, versions 1.0 and 2.0; the first where the Content-Type has no `proto`."""
Again = Callable[[], Awaitable[Cut]]
"""Cuts a request once more, with the labels of all series."""


class _Skipped:
    """Counts what requests carry that is not stored, and logs the counts at intervals."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_at = -SKIPPED_LOG_INTERVAL_S

    def add(self, cut: Cut, metadata_left_out: int) -> None:
        self._counts.update(exemplars=cut.exemplars_left_out, metadata=metadata_left_out)
        now = time.monotonic()
        if self._counts.total() and now - self._logged_at >= SKIPPED_LOG_INTERVAL_S:
            event(logging.WARNING, "remote write: skipped what is not stored", trace=False, **self._counts)
            self._counts.clear()
            self._logged_at = now


_skipped = _Skipped()


@lru_cache(HEADERS_CACHED)
def headers_of(samples: int, histograms: int, exemplars: int) -> Mapping[str, str]:
    """The headers that tell a sender how much was stored, not to be changed."""
    counts = {"Samples": samples, "Histograms": histograms, "Exemplars": exemplars}
    return {f"X-Prometheus-Remote-Write-{what}-Written": str(count) for what, count in counts.items()}


@dataclass(frozen=True, slots=True)
class Body:
    """`raw`: as it was sent; `size`: the bytes that it announces to have decompressed; `hold` counts more bytes as held
    for its request, and raises Overloaded. Both of these are held already."""

    raw: bytes
    size: int
    hold: Callable[[int], None]


async def write(request: web.Request) -> web.Response:
    """204 when every sample, histogram and exemplar of the request is durable and visible, and its metadata is stored.

    400 names the series, histograms, exemplars and metadata that are not valid; the others of the request are stored
    nevertheless. In version 2.0, which may not be silent about it, so does a request with exemplars where they are
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
    """Cut and store a request, of version 2.0 if `is_second`. Returns the headers that say how much was stored; so do
    those of the errors that it raises, which are the ones of `write`."""
    return await finish(context, body, begin(context, body, is_second=is_second), is_second=is_second)


def begin(context: Context, body: Body, *, is_second: bool) -> Cut | Awaitable[Cut]:
    """Cut a request, as `serve` does: here what is quick to cut, and the rest when it is awaited."""
    try:
        return _cut_second(context, body) if is_second else _cut_first(context, body)
    except TriptychError as error:
        tell(error, headers_of(0, 0, 0))
        raise


async def finish(context: Context, body: Body, begun: Cut | Awaitable[Cut], *, is_second: bool) -> Mapping[str, str]:
    """The rest of `serve`, of what has begun."""
    try:
        cut = begun if isinstance(begun, Cut) else await begun
    except TriptychError as error:
        tell(error, headers_of(0, 0, 0))
        raise
    return await written(context, cut, cut_again(context, body, is_second=is_second), is_second=is_second)


def cut_again(context: Context, body: Body, *, is_second: bool) -> Again:
    """How to cut this request with the labels of all series."""
    whole = partial(_cut_whole, body.raw, context.settings, is_second)
    return partial(context.decodings.run, max(body.size, len(body.raw)), whole)


def tell(error: TriptychError, headers: Mapping[str, str]) -> None:
    """Have the answer to a request that was refused for this error say how much of it was stored."""
    if error.status < 500:  # above, nobody knows
        error.headers = headers


async def written(context: Context, cut: Cut, again: Again, *, is_second: bool = False) -> Mapping[str, str]:
    """Store what was cut, with its metadata, and count it. Returns the headers that say how much that was. Raises
    BadData, with these headers, if the request had more."""
    if cut.known is not None:
        await store(context, cut, again)
        return count_known(context, cut)
    headers = headers_of(0, 0, 0)
    try:
        if cut.parts:
            await store(context, cut, again)
        headers = headers_of(cut.samples, cut.histograms, cut.exemplars)
        context.telemetry.samples_in += cut.samples + cut.histograms
        context.telemetry.histograms_in += cut.histograms
        context.telemetry.histograms_refused += cut.histograms_refused
        context.telemetry.exemplars_in += cut.exemplars
        context.telemetry.exemplars_refused += cut.exemplars_refused
        await keep_metadata(context, cut)
        problem = _problem(cut, is_second)
        if problem:
            context.telemetry.series_refused += cut.refused_count
            histograms = f" and {cut.histograms} histograms" if cut.histograms else ""
            raise BadData(f"{cut.samples} samples{histograms} stored, {problem}")
    except TriptychError as error:
        tell(error, headers)
        raise
    return headers


def count_known(context: Context, cut: Cut) -> Mapping[str, str]:
    """As `written`, when the samples are stored, of a cut that has known ones only."""
    context.telemetry.samples_in += cut.samples
    return headers_of(cut.samples, 0, 0)


async def store(context: Context, cut: Cut, again: Again) -> None:
    """Store what was cut, and keep the numbers of series that the shards gave. What a shard does not store because it
    has been opened anew, which makes its earlier numbers stale, is cut with labels and sent once more."""
    await learn_from(context, cut, again, await context.samples.write(cut.parts, cut.known))


async def learn_from(context: Context, cut: Cut, again: Again, receipt: Receipt) -> None:
    """Do what the receipt of the frames of a request makes necessary; see `store`."""
    context.telemetry.series_by_number += cut.known_series
    if not receipt.epochs:
        return
    if receipt.stale:
        context.telemetry.stale_writes += 1
        stale = {shard for shard, _ in receipt.stale}
        whole = await again()
        await context.samples.write({shard: frames for shard, frames in whole.parts.items() if shard in stale})
    learn = partial(lessons.learn, cut.lessons, context.series_references, receipt)
    series = sum(len(lesson.walk.table) for lesson in cut.lessons)
    if series <= INLINE_LESSON_MAX and not context.series_references.is_crowded:
        learn()
    else:
        with suppress(Unavailable):  # there is too much else to do: they are learned another time
            await context.decodings.run(0, learn)


async def keep_metadata(context: Context, cut: Cut) -> None:
    """Store the metadata of what was cut."""
    left_out = 0
    if cut.metadata:
        left_out = await metadata.keep(context.links, cut.metadata, context.settings.write_timeout_ms / 1000)
        context.known_metadata.add(cut.metadata_keys)  # also what found no room, which is sent again when forgotten
    _skipped.add(cut, left_out)


def _problem(cut: Cut, is_second: bool) -> str:
    """What of a request was not stored, and why; "" if nothing that its sender must know of."""
    problems = []
    if is_second and cut.exemplars_left_out:
        problems.append(f"{cut.exemplars_left_out} exemplars not, because TRIPTYCH_EXEMPLARS_BYTES is 0")
    if cut.refused_count:
        more = cut.refused_count - len(cut.refused)
        tail = f"; and {more} more" if more else ""
        problems.append("these refused: " + "; ".join(cut.refused) + tail)
    return ", ".join(problems)


def _cut_first(context: Context, body: Body) -> Cut | Awaitable[Cut]:
    """A request of version 1.0, cut by shard."""
    settings, references = context.settings, context.series_references
    if body.size > INLINE_BYTES_MAX:
        cut = partial(_cut, body.raw, settings, references)
        return context.decodings.run(max(body.size, len(body.raw)), cut)
    data = decompression.decompress(body.raw, settings.decompressed_bytes_max)
    known = known_samples.read(data, settings.shard_count(), references)
    if known is not None:
        return Cut(samples=known.samples, known_series=known.series, known=known)
    limits = Limits.of(settings)
    walked = remote_write.walk(data, limits, references)
    cut = partial(remote_write.cut_walked, data, walked, settings.shard_count(), limits)
    return cut() if remote_write.steps(walked) <= INLINE_STEPS_MAX else context.decodings.run(len(data), cut)


def _cut_second(context: Context, body: Body) -> Cut | Awaitable[Cut]:
    """A request of version 2.0, cut by shard."""
    context.known_metadata.forget()
    if body.size > INLINE_BYTES_MAX:
        return _cut_surveyed(context, body, None)
    surveyed = _survey(body.raw, context)
    if isinstance(surveyed, Instance) and _is_quick(surveyed):
        cut = surveyed.cut(context.settings.shard_count())
        if cut is not None:
            return cut
        surveyed = _survey(body.raw, context, NO_TEMPLATES)
    return _cut_surveyed(context, body, surveyed)


async def _cut_surveyed(context: Context, body: Body, surveyed: Survey | Instance | None) -> Cut:
    """The rest of `_cut_second`; `surveyed`: if it is. What its labels will take is held too, as soon as that is
    known."""
    settings = context.settings
    run_large = partial(context.decodings.run, max(body.size, len(body.raw)))
    if surveyed is None:
        surveyed = await run_large(partial(_survey, body.raw, context))
    if isinstance(surveyed, Instance):
        cut = await context.decodings.run(surveyed.bytes_total, partial(surveyed.cut, settings.shard_count()))
        if cut is not None:
            return cut
        survey = partial(_survey, body.raw, context, NO_TEMPLATES)
        surveyed = survey() if body.size <= INLINE_BYTES_MAX else await run_large(survey)
        assert isinstance(surveyed, Survey)
    body.hold(surveyed.resolved_bytes)
    cut_whole = partial(remote_write_v2.cut, surveyed, settings.shard_count(), Limits.of(settings))
    return cut_whole() if _is_quick(surveyed) else await context.decodings.run(surveyed.bytes_total, cut_whole)


def _is_quick(surveyed: Survey | Instance) -> bool:
    """Whether it is cut on the event loop."""
    return surveyed.bytes_total <= INLINE_BYTES_MAX and surveyed.steps <= INLINE_STEPS_MAX


async def _held_body(request: web.Request) -> Body:
    settings = request.app[CONTEXT].settings
    raw = await read_body(request, settings.body_bytes_max, encoding="snappy")
    size = decompression.decompressed_size(raw)
    hold(request, min(size, settings.decompressed_bytes_max))  # more is refused before it is made
    return Body(raw, size, partial(hold, request))


def _cut(raw: bytes, settings: Settings, references: SeriesReferences) -> Cut:
    body = decompression.decompress(raw, settings.decompressed_bytes_max)
    return remote_write.cut(body, settings.shard_count(), Limits.of(settings), references)


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


def _cut_whole(raw: bytes, settings: Settings, is_second: bool) -> Cut:
    """With the labels of all series."""
    if not is_second:
        return _cut(raw, settings, NO_REFERENCES)
    bytes_max, limits = settings.decompressed_bytes_max, Limits.of(settings)
    surveyed = remote_write_v2.survey(decompression.decompress(raw, bytes_max), limits, bytes_max)
    return remote_write_v2.cut(surveyed, settings.shard_count(), limits)


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
