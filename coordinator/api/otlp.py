"""POST /v1/metrics and /v1/logs, also under /api/v1/otlp: OTLP/HTTP, by which programs instrumented with OpenTelemetry
send their metrics and log records.

Specification: https://opentelemetry.io/docs/specs/otlp/#otlphttp.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial, wraps

from aiohttp import hdrs, web
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from coordinator.api.write import keep_metadata, store
from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import JSON, content_type
from coordinator.http import otlp_answers as answers
from coordinator.http.bodies import Malformed, hold, read_body
from coordinator.http.failures import refusal
from coordinator.otlp import bodies, exemplars, logs, metrics, survey
from coordinator.otlp.metrics import Prepared
from coordinator.series import remote_write
from coordinator.series.remote_write import NO_REFERENCES
from coordinator.series.split_request import SplitRequest
from shared.errors import TriptychError, UnsupportedMediaType
from shared.wire import Frame

INLINE_BYTES_MAX = 256 << 10
"""A body of protobuf of at most this many bytes is walked on the event loop (2,000 points take half a millisecond); a
larger one in a thread."""
INLINE_WRITTEN_BYTES_MAX = 1 << 20
"""Bytes of the same body with all labels written out, up to which it is split by shard on the event loop."""
INLINE_STEPS_MAX = 100
"""The number of items that interpreted code reads on the event loop, in some 10 to 30 µs each."""
INLINE_LOGS_BYTES_MAX = 8 << 10
"""Bytes of a body of log records up to which it is read on the event loop; interpreted code reads all of it."""


Handler = Callable[[web.Request], Awaitable[web.Response]]


def _answering_in_kind(handler: Handler) -> Handler:
    """Errors of a request in protobuf are answered in protobuf. Errors that other parts of the service find first are
    in JSON."""

    @wraps(handler)
    async def answered(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except TriptychError as error:
            if content_type(request) != answers.PROTOBUF or isinstance(error, Malformed):
                raise
            response = refusal(request.app[CONTEXT], request.path, error)
            response.body = answers.status(error, is_protobuf=True)
            response.content_type = answers.PROTOBUF
            return response

    return answered


@_answering_in_kind
async def write_metrics(request: web.Request) -> web.Response:
    """200 when every accepted data point is durable and visible. The partial success of the answer names what was
    refused. On 503 any part of the request may have been stored: sending it again changes nothing."""
    context = request.app[CONTEXT]
    is_protobuf = _is_protobuf(request)
    body, size = await _held_body(request)
    context.known_metadata.forget()
    look = partial(_survey, context, body, request.headers.get(hdrs.CONTENT_ENCODING, ""), is_protobuf)
    is_small = is_protobuf and size <= INLINE_BYTES_MAX
    surveyed = look() if is_small else await context.decodings.run(size, look)
    del body, look
    prepared, split_request, written = await _split(request, surveyed)
    if split_request.parts:
        limits, shards = context.otlp_translation.limits, context.settings.shard_count()
        anew = partial(remote_write.split, written, shards, limits, NO_REFERENCES)
        await store(context, split_request, partial(context.decodings.run, len(written), anew))
    _count(context, split_request)
    await keep_metadata(context, split_request)
    refusals = prepared.refusals
    context.telemetry.series_refused += refusals.count
    body = answers.exported(
        refusals.count, refusals.message(metrics.ITEMS), "rejectedDataPoints", is_protobuf=is_protobuf
    )
    return _answer(body, is_protobuf)


@_answering_in_kind
async def write_logs(request: web.Request) -> web.Response:
    """200 when every accepted record is on the disk of its shard (fsync)."""
    context = request.app[CONTEXT]
    is_protobuf = _is_protobuf(request)
    body, size = await _held_body(request)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "")
    read = partial(_logs, context, body, encoding, is_protobuf)
    batch = read() if size <= INLINE_LOGS_BYTES_MAX else await context.decodings.run(size, read)
    del body, read
    hold(request, batch.size_bytes)
    for part in batch.parts:
        await context.log.append(part)
        context.telemetry.records_in += part.count
    refusals = batch.refusals
    answer = answers.exported(
        refusals.count, refusals.message(logs.ITEMS), "rejectedLogRecords", is_protobuf=is_protobuf
    )
    return _answer(answer, is_protobuf)


def _is_protobuf(request: web.Request) -> bool:
    kind = content_type(request)
    if kind not in (answers.PROTOBUF, JSON):
        raise UnsupportedMediaType(f"Content-Type is {kind!r}; it must be {answers.PROTOBUF} or {JSON}")
    return kind == answers.PROTOBUF


async def _held_body(request: web.Request) -> tuple[bytes, int]:
    """The body as it was sent, and the size of what it has decompressed, which counts as held, too."""
    settings = request.app[CONTEXT].settings
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower() or "identity"
    if encoding not in ("gzip", "identity"):
        raise UnsupportedMediaType(f"Content-Encoding is {encoding!r}; it must be 'gzip' or missing")
    raw = await read_body(request, settings.body_bytes_max, encoding=encoding)
    if encoding == "identity":
        return raw, len(raw)
    size = bodies.inflated_size(raw)
    hold(request, min(size, settings.decompressed_bytes_max))  # larger bodies are refused before they are decompressed
    return raw, max(size, len(raw))


def _inflated(context: Context, raw: bytes, encoding: str) -> bytes:
    is_zipped = encoding.strip().lower() == "gzip"
    return bodies.inflated(raw, context.settings.decompressed_bytes_max) if is_zipped else raw


def _survey(context: Context, raw: bytes, encoding: str, is_protobuf: bool) -> survey.Survey:
    body = _inflated(context, raw, encoding)
    if not is_protobuf:
        body = bodies.of_json(body, ExportMetricsServiceRequest, exemplars.all_of).SerializeToString()
    custom_buckets = context.otlp_translation.custom_buckets
    return survey.survey(body, context.known_sets, context.known_metadata, custom_buckets=custom_buckets)


async def _split(request: web.Request, surveyed: survey.Survey) -> tuple[Prepared, SplitRequest, Frame]:
    """The request split by shard, and in the form of remote write. Its memory counts as held as soon as its size is
    known."""
    context = request.app[CONTEXT]
    settings, translation = context.settings, context.otlp_translation
    is_small = len(surveyed.body) <= INLINE_BYTES_MAX and surveyed.steps <= INLINE_STEPS_MAX
    prepare = partial(metrics.prepare, surveyed, translation, settings.decompressed_bytes_max)
    prepared = prepare() if is_small else await context.decodings.run(len(surveyed.body), prepare)
    size = prepared.require_at_most(settings.decompressed_bytes_max)
    hold(request, size)

    def split() -> tuple[SplitRequest, Frame]:
        written = prepared.written()
        context.known_sets.add(prepared.new, prepared.new_keys)
        return metrics.split(prepared, written, settings.shard_count(), translation, context.series_references), written

    is_small = is_small and size <= INLINE_WRITTEN_BYTES_MAX
    answer, written = split() if is_small else await context.decodings.run(size, split)
    return prepared, answer, written


def _logs(context: Context, raw: bytes, encoding: str, is_protobuf: bool) -> logs.LogExport:
    body = _inflated(context, raw, encoding)
    message = logs.message_of(body) if is_protobuf else logs.message_of_json(body)
    export = logs.export_of(body, message, context.settings)
    for part in export.parts:
        part.cut(context.links.shards)
    return export


def _count(context: Context, split_request: SplitRequest) -> None:
    telemetry = context.telemetry
    telemetry.samples_in += split_request.samples + split_request.histograms
    telemetry.histograms_in += split_request.histograms
    telemetry.histograms_refused += split_request.histograms_refused
    telemetry.exemplars_in += split_request.exemplars
    telemetry.exemplars_refused += split_request.exemplars_refused


def _answer(body: bytes, is_protobuf: bool) -> web.Response:
    return web.Response(body=body, content_type=answers.PROTOBUF if is_protobuf else JSON)


ROUTES: list[web.RouteDef] = [
    web.post(f"{prefix}/v1/{signal}", handler)
    for prefix in ("", "/api/v1/otlp")
    for signal, handler in (("metrics", write_metrics), ("logs", write_logs))
]
