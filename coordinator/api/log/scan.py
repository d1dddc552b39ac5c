"""GET /api/v1/log/scan: records in pages as the shards send them, and reads that wait for new records."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from aiohttp import web

from coordinator.api import arrow_answers, parameters
from coordinator.api.listed import listed
from coordinator.api.log import answers, log_parameters, times
from coordinator.api.log.log_parameters import RECORD_FORM, SEARCH, SELECTION, SEQUENCES, TIMES
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT, Context
from coordinator.headers.negotiation import ARROW, EVENTS, JSON, PROTOBUF, boolean, preferred
from coordinator.http.arrow_streams import RecordStream
from coordinator.http.protocol import connection_of
from coordinator.http.streaming import WRITE_BYTES, Outlet, Piece, gathered, outlet
from coordinator.log.follow import Follower, Row, rows_of
from coordinator.log.reads import KeySelection, Warnings
from coordinator.queries.running import FOLLOW, TEXT_MAX, RunningQuery
from proto import log_pb2
from shared.errors import BadData, TriptychError
from shared.messages.log_pages import Page, Records

LIMIT_DEFAULT = 1000
LIMIT_MAX = 10_000_000
"""Answers are sent while they are read, so a long answer takes no more memory than a short one."""
FOLLOW_TIMEOUT_S = 30.0
FOLLOW_TIMEOUT_MAX_S = 300.0
KEEP_ALIVE_S = 15.0
"""A comment at this interval keeps proxies from closing a quiet stream, and reveals readers that have disconnected."""
EVENTS_AT_ONCE = 1000
EVENTS_BYTES = 64 << 10
"""Events are written in pieces of about this size: a client that does not read holds no more text than this."""
RETRY_S = 0.5


@known_parameters(*SELECTION, *SEQUENCES, *TIMES, *SEARCH, *RECORD_FORM, "limit", "reverse", "follow", "timeout")
async def scan(request: web.Request) -> web.StreamResponse:
    """Records of `key`, or of all keys with `prefix` merged by sequence number."""
    query = request.query
    selection = log_parameters.selection(query)
    numbers, times_ms = log_parameters.sequences(query), log_parameters.times_ms(query)
    reverse = boolean(query, "reverse", False)
    follow = boolean(query, "follow", False)
    form = answers.form(query)
    media_type = preferred(request, EVENTS, ARROW, PROTOBUF, JSON)
    if media_type == ARROW and not await arrow_answers.is_wanted(request):
        media_type = preferred(request, PROTOBUF, JSON)
    text = request.query_string[:TEXT_MAX]  # no more of the request is kept, because it may follow the log for days
    if media_type == EVENTS:
        if reverse:
            raise BadData("parameter 'reverse' is true; an event stream goes forward only")
        times.require_past(times_ms)
        numbers = log_parameters.resumed(request, numbers[0]), numbers[1]
        following = partial(event_stream, request, selection, numbers, times_ms, form)
        return await listed(request, FOLLOW, text, following)
    limit = log_parameters.whole(query, ("limit",), LIMIT_DEFAULT, 1, LIMIT_MAX)
    timeout_s = parameters.seconds(query, "timeout", FOLLOW_TIMEOUT_S, FOLLOW_TIMEOUT_MAX_S)
    if follow and reverse:
        raise BadData("parameter 'reverse' is true; a read that follows goes forward only")
    if follow:
        times.require_past(times_ms)
    if selection.key is None and reverse:
        raise BadData("parameter 'reverse' is true; records of a prefix are merged forward only")
    if media_type != JSON and form.value_bytes < answers.VALUE_BYTES_MAX:
        raise BadData("parameter 'value_bytes' is for JSON and events; protobuf and Arrow have whole values")
    body: _Body = _Json(selection, form)
    if media_type != JSON:
        body = _Protobuf() if media_type == PROTOBUF else _Arrow(selection)

    async def scanned(running: RunningQuery) -> web.StreamResponse:
        damage = Warnings()
        if times_ms != (None, None):
            running.enter("running")
        start, end = await times.between(request.app[CONTEXT].log.reader, selection, numbers, times_ms, damage)
        if follow:
            running.enter("following")
            begin = await _wait_for_records(request, selection, start, end, timeout_s, damage)
        else:
            begin = start
        running.enter("running")
        return await _scan(request, selection, begin, end, limit, reverse, body, damage)

    return await listed(request, FOLLOW if follow else "log.scan", text, scanned)


class _Body(Protocol):
    """How an answer is written. The methods are called in this order."""

    media_type: str
    record_bytes: int
    """About how much memory a record takes beside its key and its value."""
    part_bytes: int
    """Records are written to a client in parts of about this size, of which a client that does not read holds one."""

    def start(self) -> bytes: ...

    def page(self, records: Records) -> list[bytes | bytearray | memoryview]: ...

    def end(self, following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes: ...


class _Json:
    media_type = JSON
    record_bytes = 52
    part_bytes = 180 << 10  # base64 is a third longer

    def __init__(self, selection: KeySelection, form: answers.Form) -> None:
        self._selection = selection
        self._form = form
        self._first = True

    def start(self) -> bytes:
        return answers.JSON_START

    def page(self, records: Records) -> list[bytes | bytearray | memoryview]:
        if not len(records):
            return []
        comma = b"" if self._first else b","
        self._first = False
        return [comma, answers.json_records(list(rows_of(records, self._selection)), self._form)]

    def end(self, following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes:
        return answers.json_end(following, log_start, warnings, infos)


class _Protobuf:
    media_type = PROTOBUF
    record_bytes = 20
    part_bytes = WRITE_BYTES - 1024  # so that a part and what surrounds it are one write

    def start(self) -> bytes:
        return log_pb2.ScanResponse(status="success").SerializeToString()

    def page(self, records: Records) -> list[bytes | bytearray | memoryview]:
        return answers.protobuf_page(records) if len(records) else []

    def end(self, following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes:
        remarks = [*warnings, *infos]
        message = log_pb2.ScanResponse(next_sequence=following, log_start_sequence=log_start, warnings=remarks)
        return message.SerializeToString()


class _Arrow:
    media_type = ARROW
    record_bytes = 52
    part_bytes = 180 << 10

    def __init__(self, selection: KeySelection) -> None:
        self._stream = RecordStream(selection.key)

    def start(self) -> bytes:
        return b""

    def page(self, records: Records) -> list[bytes | bytearray | memoryview]:
        return [self._stream.page(records)] if len(records) else []

    def end(self, following: int, log_start: int, warnings: Sequence[str], infos: Sequence[str] = ()) -> bytes:
        return self._stream.end(following, log_start, warnings, infos)


async def _scan(
    request: web.Request,
    selection: KeySelection,
    start: int,
    end: int,
    limit: int,
    reverse: bool,
    body: _Body,
    damage: Warnings,
) -> web.StreamResponse:
    """The first page decides the status. If a shard is lost after it, or the scan takes too long, the answer ends early
    with a warning and the number to continue from; after TRIPTYCH_LOG_SEARCH_TIMEOUT, with an info."""
    area = request.app[CONTEXT].log
    give_up = area.reader.scan_deadline()
    search_s = request.app[CONTEXT].settings.log_search_timeout_ms / 1000
    search_until = time.monotonic() + search_s if selection.search else float("inf")

    def pages_of(rest: _Rest) -> AsyncGenerator[Page, None]:
        return area.reader.pages(selection, rest.start, rest.end, rest.limit, reverse, damage, give_up)

    rest = _Rest(start, end, limit, reverse)
    pages = pages_of(rest)
    try:
        page = await anext(pages)
        if page.done or len(page.records) >= limit:
            pieces = [body.start(), *body.page(page.records)]
            pieces.append(body.end(page.next, area.sequencer.log_start, damage.texts()))
            return web.Response(body=b"".join(pieces), content_type=body.media_type)
        response = web.StreamResponse(headers={"Content-Type": body.media_type})
        await response.prepare(request)
        warnings: list[str] = []
        infos: list[str] = []
        with outlet(request) as client:
            await client.write_all(body.start())
            try:
                while not await _send_page(client, page, rest, body):
                    if client.is_late:
                        # The page and the next one are dropped, and read again when the client continues.
                        del page
                        await pages.aclose()
                        await client.taken()
                        pages = pages_of(rest)
                    if time.monotonic() >= search_until:
                        infos = [f"the search is not at the end after {search_s:g} s; it goes on at nextSequence"]
                        break
                    page = await anext(pages)
            except TriptychError as error:
                warnings = [f"the answer ends early: {error}"]
            await client.write_all(body.end(rest.next, area.sequencer.log_start, warnings + damage.texts(), infos))
        await response.write_eof()
        return response
    finally:
        await pages.aclose()


@dataclass(slots=True)
class _Rest:
    """The part of a scan that is still to be sent. `next`: the sequence number to continue from."""

    start: int
    end: int
    limit: int
    reverse: bool

    @property
    def next(self) -> int:
        return self.end if self.reverse else self.start

    def sent(self, records: int, following: int) -> None:
        """Note that so many records have been sent, and with them all before `following` (in reverse: from it on)."""
        self.limit -= records
        if self.reverse:
            self.end = following
        else:
            self.start = following


async def _send_page(client: Outlet, page: Page, rest: _Rest, body: _Body) -> bool:
    """Send the page as far as the client reads it soon. Returns whether the scan is complete with it."""
    records = page.records
    for low, high in _parts(records, body):
        if client.is_late:
            return False
        piece = records.cut(low, high)
        await client.write_all(b"".join(body.page(piece)))
        last = int(piece.sequences[-1])
        rest.sent(len(piece), last if rest.reverse else last + 1)
    rest.sent(0, page.next)
    return page.done or rest.limit <= 0


def _parts(records: Records, body: _Body) -> Iterator[tuple[int, int]]:
    """(first, last) of parts with about the size that the body asks for, and with one record at least."""
    sizes = records.value_lengths + np.int64(body.record_bytes)
    if len(records.key_lengths):
        sizes = sizes + records.key_lengths
    ends = np.cumsum(sizes)
    low = 0
    while low < len(records):
        begin = int(ends[low - 1]) if low else 0
        high = max(low + 1, int(np.searchsorted(ends, begin + body.part_bytes, side="right")))
        yield low, high
        low = high


async def _send(response: web.StreamResponse, data: Piece) -> None:
    """Return when the client has read nearly all of it. Raises ConnectionResetError when it has disconnected. A client
    that reads nothing is disconnected, and can resume where it was."""
    if data:
        await response.write(data)


@contextmanager
def _following(request: web.Request, selection: KeySelection, start: int) -> Iterator[Follower]:
    """A follower for as long as the context lasts. Meanwhile its request does not count as in flight, because it waits
    for records."""
    context = request.app[CONTEXT]
    with (
        context.log.followers.following(selection, start) as follower,
        context.admission.following(connection_of(request).holder),
    ):
        yield follower


async def _wait_for_records(
    request: web.Request, selection: KeySelection, start: int, end: int, timeout_s: float, damage: Warnings
) -> int:
    """Return where to read from, when the selection has a readable record from `start` on or the time is over. A search
    does not examine these records again; `damage` has the warnings about them."""
    if start >= end:
        return start
    rows: list[Row] = []
    followers = request.app[CONTEXT].log.followers
    with _following(request, selection, start) as follower:
        follower.warnings = damage
        try:
            async with asyncio.timeout(timeout_s):
                while not (rows := await followers.read(follower, 1)) and follower.position < end:
                    pass
        except TimeoutError:
            pass
    if selection.search is None:
        return start
    return min(end, rows[0][0] if rows else follower.position)


async def event_stream(
    request: web.Request,
    selection: KeySelection,
    numbers: tuple[int, int],
    times_ms: times.TimesMs,
    form: answers.Form,
    running: RunningQuery,
    *,
    begins_with_id: bool = False,
) -> web.StreamResponse:
    """Records as server-sent events, first past and then new ones, until the end or until the reader disconnects.
    `begins_with_id`: the first event has only an id, which says where they begin."""
    running.enter("following")
    context = request.app[CONTEXT]
    damage = Warnings()
    if request.headers.get("Last-Event-ID"):
        times_ms = (None, times_ms[1])  # a start in the future would skip what comes while the reader is disconnected
    start, end = await times.between(context.log.reader, selection, numbers, times_ms, damage)
    limit = log_parameters.whole(request.query, ("limit",), LIMIT_MAX, 1, LIMIT_MAX)
    timeout_s = parameters.seconds(request.query, "timeout", float("inf"), float("inf"))
    with _following(request, selection, start) as follower:
        follower.warnings = damage
        rows = await context.log.followers.read(follower, min(limit, EVENTS_AT_ONCE))
        headers = {"Content-Type": EVENTS, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        if begins_with_id:
            await _send(response, b"id: %d\n\n" % (start - 1))
        give_up = time.monotonic() + timeout_s
        quiet_since = time.monotonic()
        warned = 0
        while True:
            rows = [row for row in rows if row[0] < end][:limit]
            limit -= len(rows)
            await _send_events(response, rows, form)
            warned = await _send_warnings(response, follower, warned)
            left_s = give_up - time.monotonic()
            if limit <= 0 or follower.position >= end or left_s <= 0:
                return response
            rows, is_late = await _next_rows(context, follower, min(limit, EVENTS_AT_ONCE), min(left_s, KEEP_ALIVE_S))
            if is_late:
                await _send(response, b": waiting\n\n")
            elif rows:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since > KEEP_ALIVE_S and follower.position:
                quiet_since = time.monotonic()
                await _send(response, answers.progress_event(follower.position))


async def _send_events(response: web.StreamResponse, rows: list[Row], form: answers.Form) -> None:
    """Send the records, and empty the list meanwhile. So a client that does not read holds one piece of text, and only
    the records after it."""
    rows.reverse()
    for piece in gathered(_events(rows, form), EVENTS_BYTES):
        await _send(response, piece)


def _events(rows: list[Row], form: answers.Form) -> Iterator[bytes]:
    """The records as events, from the last one on. Each record is removed from the list."""
    while rows:
        yield answers.event(rows.pop(), form)


async def _send_warnings(response: web.StreamResponse, follower: Follower, warned: int) -> int:
    """Send the warnings that the reader has not had yet. Returns how many it has had then."""
    if len(follower.warnings) > warned:
        await _send(response, b"".join(map(answers.warning_event, follower.warnings.texts()[warned:])))
    return len(follower.warnings)


async def _next_rows(context: Context, follower: Follower, limit: int, timeout_s: float) -> tuple[list[Row], bool]:
    """(rows, False); ([], True) when none arrived in time, or when a shard is unavailable."""
    try:
        async with asyncio.timeout(timeout_s):
            return await context.log.followers.read(follower, limit), False
    except TimeoutError:
        return [], True
    except TriptychError:
        await asyncio.sleep(RETRY_S)
        return [], True


ROUTES: list[web.RouteDef] = [web.get("/api/v1/log/scan", scan, allow_head=False)]
