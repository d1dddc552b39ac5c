"""POST /api/v1/import and /api/v1/import/csv: samples in formats of files, stored as remote write stores them."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Callable, Generator
from functools import partial

from aiohttp import hdrs, web

from coordinator.api.listed import listed
from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import content_type
from coordinator.http.bodies import Malformed, hold, read_body
from coordinator.queries.running import RunningQuery
from coordinator.series import remote_write
from coordinator.series.label_sets import Limits
from coordinator.series.split_request import SplitRequest
from coordinator.transfer import arrow_reading, csv_reading, json_reading
from coordinator.transfer.arrow import STREAM
from coordinator.transfer.csv_reading import Columns
from coordinator.transfer.json_reading import LabelSets
from coordinator.transfer.refusals import Refusals
from coordinator.transfer.series_body import SeriesArrays
from coordinator.transfer.text_source import TextSource, line_slices
from shared.errors import BadData, TriptychError
from shared.settings import Settings

SLICE_BYTES = 4 << 20
"""Text that is read and stored at once: some 200,000 samples."""
LINE_BYTES_MAX = 8 << 20
WORKING_BYTES = 16 * SLICE_BYTES
"""The memory of two slices, one being read and the other being stored: their arrays, bodies and frames."""

WRITTEN = "X-Prometheus-Remote-Write-Samples-Written"
"""The header that says how many samples were stored, as in remote write."""

_SERIES = re.compile(r"^series (\d+) ")

Parts = Generator[tuple[SeriesArrays, list[int]], None, None]
"""Series, and for each the number of its line or row in the body: the first one if it has several."""


async def import_samples(request: web.Request) -> web.Response:
    """204 when all samples of the body are durable and visible.

    The body is JSON lines, or an Arrow stream if the Content-Type says so. 400 names the first lines that are not
    valid; all others are stored nevertheless. On 503 any part may have been stored: sending it again changes nothing.
    """
    is_arrow = content_type(request) == STREAM
    return await _imported(request, _arrow_parts if is_arrow else _json_parts, "rows" if is_arrow else "lines")


async def import_csv(request: web.Request) -> web.Response:
    """As `import_samples`, for CSV: with a header line as exports have it, or as the parameter `format` describes."""
    text = request.query.get("format", "")
    columns = Columns.of_format(text) if text else None
    return await _imported(request, partial(_csv_parts, columns), "lines")


async def _imported(
    request: web.Request, parts_of: Callable[[TextSource, LabelSets, Refusals], Parts], what: str
) -> web.Response:
    async def work(running: RunningQuery) -> web.Response:
        context = request.app[CONTEXT]
        source = await _source(request, context.settings)
        refusals = Refusals(what)
        parts = parts_of(source, LabelSets(Limits.of(context.settings)), refusals)
        stored = _Stored()
        try:
            running.enter("running")
            await _store_all(context, parts, refusals, stored, running)
            if refusals.count:
                context.telemetry.series_refused += refusals.count
                raise Refused(refusals.text(f"{stored.samples} samples"))
        except TriptychError as error:
            if error.status >= 500:  # it is not known how much was stored
                raise
            if stored.samples and not isinstance(error, Refused):
                error = type(error)(f"{error}; {stored.samples} samples before are stored")
            error.headers = stored.headers()
            raise error from None
        finally:
            context.telemetry.samples_in += stored.samples
        return web.Response(status=204, headers=stored.headers())

    return await listed(request, "import", request.path, work)


class Refused(BadData):
    """Some items were refused, and all others are stored."""


class _Stored:
    """How much of an import is stored."""

    samples = 0

    def headers(self) -> dict[str, str]:
        return {WRITTEN: str(self.samples)}


async def _source(request: web.Request, settings: Settings) -> TextSource:
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise Malformed(f"Content-Encoding is {encoding!r}; it must be 'gzip' or 'identity'")
    body = await read_body(request, settings.body_bytes_max, encoding=encoding or "identity")
    is_gzip, bytes_max = encoding == "gzip", settings.decompressed_bytes_max
    if content_type(request) == STREAM and is_gzip:  # a body that is decompressed as one piece
        bytes_max = settings.body_bytes_max
        hold(request, bytes_max)
    hold(request, WORKING_BYTES if is_gzip else min(WORKING_BYTES, 16 * len(body)))
    return TextSource(body, is_gzip=is_gzip, bytes_max=bytes_max)


async def _store_all(
    context: Context, parts: Parts, refusals: Refusals, stored: _Stored, running: RunningQuery
) -> None:
    """Store one part after the other, and read the next one meanwhile. An error in reading is raised after the parts
    before it are stored."""
    settings = context.settings

    def next_split() -> SplitRequest | None:
        items = next(parts, None)
        return None if items is None else _split(*items, settings, refusals)

    coming = asyncio.ensure_future(context.decodings.run(SLICE_BYTES, next_split))
    try:
        while (split_request := await coming) is not None:
            coming = asyncio.ensure_future(context.decodings.run(SLICE_BYTES, next_split))
            if split_request.parts:
                await context.samples.write(split_request.parts)
            stored.samples += split_request.samples + split_request.histograms
            running.samples_read = stored.samples
    finally:
        coming.cancel()


def _split(series: SeriesArrays, lines: list[int], settings: Settings, refusals: Refusals) -> SplitRequest:
    """The series as frames for the shards. Invalid series are added to `refusals`."""
    split_request = remote_write.split(series.body(), settings.shard_count(), Limits.of(settings))
    for text in split_request.refused:
        refusals.add(_SERIES.sub(lambda match: f"{refusals.item} {lines[int(match[1])]}, ", text))
    refusals.count += split_request.refused_count - len(split_request.refused)
    return split_request


def _json_parts(source: TextSource, label_sets: LabelSets, refusals: Refusals) -> Parts:
    for first_line, text in line_slices(source, SLICE_BYTES, LINE_BYTES_MAX):
        yield json_reading.read(text, first_line, label_sets, refusals)


def _csv_parts(columns: Columns | None, source: TextSource, label_sets: LabelSets, refusals: Refusals) -> Parts:
    # Bytes that are not UTF-8 become surrogates, which no label or number may contain: only their row is refused.
    text = io.TextIOWrapper(io.BufferedReader(source), encoding="utf-8", errors="surrogateescape", newline="")
    yield from csv_reading.read(text, columns, label_sets, refusals)


def _arrow_parts(source: TextSource, label_sets: LabelSets, refusals: Refusals) -> Parts:
    body = io.BufferedReader(source).read()
    yield from arrow_reading.read(body, label_sets, refusals)


ROUTES: list[web.RouteDef] = [
    web.post("/api/v1/import", import_samples),
    web.post("/api/v1/import/csv", import_csv),
]
