"""Reads of the log: which segments and shards they concern, in pages, never past the frontier."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from coordinator.fanout.calls import WorkerReply
from coordinator.fanout.links import Links
from coordinator.log.frontier import Frontier
from coordinator.log.recovery import Recovery
from coordinator.log.sequencer import Sequencer
from coordinator.log.turns import Turns
from shared.errors import DeadlineExceeded, Unavailable
from shared.hashing import shard_of
from shared.messages import log
from shared.messages.log_pages import NO_NUMBERS, Page, Records, check_progress, merge_pages
from shared.settings import Settings
from shared.wire import pack, unpack

PAGE_RECORDS = 8192
"""Records requested from the shards at once. A page of short records takes some ms, so the fixed cost of a page and of
a write to the client is a small share."""
PAGE_RECORDS_FIRST = 1024
"""Records of the first page. Each next page has twice as many, so a client that does not read its answer costs little
memory."""

WARNINGS_MAX = 100
"""Warning texts in one answer; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class KeySelection:
    """The records of `key`, or, if it is None, of every key with `prefix`; with `search`, those that it finds."""

    key: bytes | None
    prefix: bytes = b""
    search: log.Search | None = None


class Warnings:
    """What an answer lacks because of damage on disk: each text once, in the order of arrival."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._left_out = 0

    def add(self, replies: Sequence[WorkerReply]) -> None:
        for reply in replies:
            for text in reply.message.warnings:
                if text in self._texts:
                    continue
                if len(self._texts) < WARNINGS_MAX:
                    self._texts[text] = None
                else:
                    self._left_out += 1

    def __len__(self) -> int:
        return len(self._texts)

    def texts(self) -> list[str]:
        return [*self._texts, *([f"and {self._left_out} more warnings"] if self._left_out else [])]


class Reader:
    """Reads the log. Every method that asks shards raises Unavailable when one of them is missing.

    A reader never reads an earlier part of the log again, so it would miss the records of an absent shard for good.
    Therefore a read of the log is never partial, unlike the answer to a query. Damage on disk is the exception, because
    no waiting repairs it: `warnings` collects texts that say what is missing.
    """

    def __init__(
        self,
        settings: Settings,
        links: Links,
        turns: Turns,
        sequencer: Sequencer,
        frontier: Frontier,
        recovery: Recovery,
    ) -> None:
        self._settings = settings
        self._links = links
        self._turns = turns
        self._sequencer = sequencer
        self._frontier = frontier
        self._recovery = recovery

    @property
    def _timeout_s(self) -> float:
        return self._settings.write_timeout_ms / 1000

    @property
    def _query_timeout_s(self) -> float:
        return self._settings.query_timeout_ms / 1000

    def _shards(self, selection: KeySelection) -> list[int]:
        if selection.key is None:
            return list(range(self._links.shards))
        return [shard_of(selection.key, self._links.shards)]

    async def wait_for(self, selection: KeySelection) -> None:
        """Return when every batch that the selection's shards hold is decided, which is usually at once. Raises
        Unavailable when one of the shards is not ready or does not report in time."""
        await self._recovery.wait_for(self._shards(selection))

    @property
    def visible(self) -> int:
        """Records below this number may be read now. It may fall while shards report after a start, so an answer after
        a wait uses the number that it has after the wait."""
        return self._frontier.visible

    def _range(self, start: int, end: int) -> log.Range | None:
        """The part of start ≤ number < end that may be read now; None when it is empty."""
        return self.range(start, min(end, self.visible))

    def range(self, start: int, end: int) -> log.Range | None:
        """What the log has of start ≤ number < end, whether it may be read or not; None when it is empty."""
        segments = self._sequencer.segments  # another thread replaces the list when a segment begins or is dropped
        start = max(start, segments[0].start_seq if segments else 0)
        if start >= end or not segments:
            return None
        begins = [segment.start_seq for segment in segments]
        first = segments[max(0, bisect_right(begins, start) - 1)].id
        last = segments[max(0, bisect_left(begins, end) - 1)].id
        return log.Range(first, last, start, end, self._recovery.hidden(start, end))

    def readable(self, start: int, end: int) -> log.Range | None:
        """As `_range`, for readers that ask the shards themselves."""
        return self._range(start, end)

    async def page(
        self,
        selection: KeySelection,
        start: int,
        end: int,
        limit: int,
        reverse: bool = False,
        warnings: Warnings | None = None,
    ) -> Page:
        """One page of the records with start ≤ number < end. The next page begins (in reverse: ends) at `Page.next`."""
        shards = self._shards(selection)
        await self.wait_for(selection)
        span = self._range(start, end)
        if span is None:
            nothing = Records.of(NO_NUMBERS, [])
            return Page(nothing, start if reverse else max(start, min(end, self.visible)), True)
        limit = min(limit, PAGE_RECORDS)
        body = log.ScanBody(span, limit, selection.key or b"", selection.prefix, reverse, selection.search)
        if selection.key is not None and selection.search is None:
            replies = await self._links.call("log.scan", shards=shards, body=pack(body), timeout_s=self._timeout_s)
        else:
            method = "log.merge" if selection.key is None else "log.search"
            replies = await self._turns.call(method, shards=shards, body=pack(body), timeout_s=self._query_timeout_s)
        if warnings is not None:
            warnings.add(replies)
        pages = []
        for reply in replies:
            head = unpack(reply.message.body, log.ScanReply)
            pages.append(Page(Records.from_frames(reply.message.frames), head.next, head.done))
            check_progress(pages[-1], span.start, span.end, reverse)
        return pages[0] if len(pages) == 1 else merge_pages(pages, limit)

    async def pages(
        self,
        selection: KeySelection,
        start: int,
        end: int,
        limit: int,
        reverse: bool = False,
        warnings: Warnings | None = None,
        give_up: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """All pages, up to `limit` records. The next page is requested while the caller uses the last one. There is
        always at least one page. `give_up` is a time of `time.monotonic()`, by default `scan_deadline`.

        Raises DeadlineExceeded between two pages when they take longer than TRIPTYCH_LOG_SCAN_TIMEOUT together.
        """
        if give_up is None:
            give_up = self.scan_deadline()
        page_records = PAGE_RECORDS_FIRST
        upcoming = asyncio.ensure_future(self.page(selection, start, end, min(limit, page_records), reverse, warnings))
        try:
            while True:
                page = await upcoming
                limit -= len(page.records)
                start, end = (start, page.next) if reverse else (page.next, end)
                finished = page.done or limit <= 0
                is_late = time.monotonic() > give_up
                if not finished and not is_late:
                    page_records = min(PAGE_RECORDS, 2 * page_records)
                    upcoming = asyncio.ensure_future(
                        self.page(selection, start, end, min(limit, page_records), reverse, warnings)
                    )
                yield page
                del page  # not held while the next one is awaited
                if finished:
                    return
                if is_late:
                    raise DeadlineExceeded(
                        f"the scan took longer than {self._settings.log_scan_timeout_ms / 1000:g} s "
                        "(TRIPTYCH_LOG_SCAN_TIMEOUT)"
                    )
        finally:
            upcoming.cancel()

    def scan_deadline(self) -> float:
        """When a scan that begins now must be over, in seconds of `time.monotonic()`."""
        return time.monotonic() + self._settings.log_scan_timeout_ms / 1000

    async def sequence_at(self, time_ms: int, selection: KeySelection, warnings: Warnings | None = None) -> int:
        """The number that divides the selection's readable records by time: those from this number on were appended at
        or after `time_ms` (Unix ms), those below it earlier. A record of unknown time counts as appended when its
        segment began."""
        shards = self._shards(selection)
        await self._recovery.wait_for(shards)
        await self._wait_until_seen(time_ms)
        segments, visible = self._sequencer.segments, self.visible
        following = bisect_left([segment.start_time_ms for segment in segments], time_ms)
        if time_ms > self._sequencer.last_time_ms or not segments:
            return visible
        above = min(visible, segments[following].start_seq) if following < len(segments) else visible
        if following == 0:
            return above
        body = pack(log.FirstAtBody(segments[following - 1].id, time_ms))
        replies = await self._turns.call("log.first_at", shards=shards, body=body, timeout_s=self._query_timeout_s)
        if warnings is not None:
            warnings.add(replies)
        return min(above, *(unpack(reply.message.body, log.FirstAtReply).number for reply in replies))

    async def _wait_until_seen(self, time_ms: int) -> None:
        """Return when reads see all records that were appended before this time, also those that are still under way
        now. Otherwise a read that ends at this time would miss them, and so would the next one, which begins there.
        Raises Unavailable."""
        upto = self._frontier.end_before(time_ms)
        has_all_shards = self._recovery.complete.is_set() and not self._links.unready()
        if self._settings.log_visibility == "durable" and not has_all_shards:
            return  # nothing becomes visible until all shards are ready
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._frontier.wait_visible(upto)
        except TimeoutError:
            raise Unavailable(
                "records that were appended before the time asked for are still under way; try again later"
            ) from None

    async def keys(
        self,
        prefix: bytes,
        after: bytes | None,
        segments: tuple[int, int],
        limit: int,
        warnings: Warnings | None = None,
        numbers: tuple[int, int] = (0, log.SEQUENCE_MAX),
    ) -> tuple[list[bytes], bool]:
        """(distinct keys with records in first ≤ segment < last and start ≤ number < end, ascending; whether there are
        more)."""
        shards = list(range(self._links.shards))
        await self._recovery.wait_for(shards)
        span = self._range(*numbers)
        if span is None:
            return [], False
        span.first_segment = max(span.first_segment, segments[0])
        span.last_segment = min(span.last_segment, segments[1] - 1)
        body = pack(log.KeysBody(span, prefix, after, limit + 1))
        replies = await self._turns.call("log.keys", shards=shards, body=body, timeout_s=self._query_timeout_s)
        if warnings is not None:
            warnings.add(replies)
        keys = sorted(key for reply in replies for key in unpack(reply.message.body, log.KeysReply).keys)
        return keys[:limit], len(keys) > limit

    async def count(self, selection: KeySelection, start: int, end: int, warnings: Warnings | None = None) -> int:
        """How many records the selection has in start ≤ number < end, exactly."""
        shards = self._shards(selection)
        await self._recovery.wait_for(shards)
        span = self._range(start, end)
        if span is None:
            return 0
        body = pack(log.CountBody(span, selection.key, selection.prefix, selection.search))
        replies = await self._turns.call("log.count", shards=shards, body=body, timeout_s=self._query_timeout_s)
        if warnings is not None:
            warnings.add(replies)
        return sum(unpack(reply.message.body, log.CountReply).records for reply in replies)
