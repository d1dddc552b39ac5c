"""The stored samples of some series, fetched from the workers slice by slice."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coordinator.fanout.calls import require_whole
from coordinator.fanout.links import Links
from shared.labels import LabelFrame, Symbols
from shared.messages import exchange
from shared.messages.series import Selectors
from shared.messages.series_export import Cursor, ExportBody, ExportReply
from shared.promql.engine.scan import without_stale
from shared.promql.model import RangeVector, Samples
from shared.wire import Frame, pack, unpack

SLICE_SAMPLES = 1 << 19
"""The number of samples that a slice should have: 8 MB, which take some 20 ms to read. A few large slices cost less
than many small ones, because a shard looks up its series again for each slice."""
SLICE_BYTES_MAX = 64 << 20
"""The memory that a worker may use for one slice: its samples several times over, while they are gathered from several
blocks."""
LANES_MAX = 4
"""Shards that are read at once, each in another worker. An export holds this many slices in memory, and one that is
being sent."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Series with their samples: series i of `labels` owns [offsets[i], offsets[i + 1]) of the samples, at least one.
    No series is in two slices, unless it has so many samples that it is in several, in the order of time."""

    labels: LabelFrame
    samples: Samples


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """Series that match any of the selectors, and their samples with start ≤ t ≤ end, in Unix ms."""

    selectors: Selectors
    start_ms: int
    end_ms: int
    keeps_stale: bool = True


@dataclass(frozen=True, slots=True)
class SliceReply:
    """A slice as a worker sent it."""

    message: ExportReply
    frames: Sequence[Frame]

    def decoded(self, selection: ExportSelection) -> Slice:
        """Work for a thread."""
        value = exchange.decode(self.message.shape, self.frames, Symbols())
        assert isinstance(value, RangeVector)
        samples = value.samples if selection.keeps_stale else without_stale(value.samples)
        is_kept = np.diff(samples.offsets) > 0
        if is_kept.all():
            return Slice(value.labels, samples)
        offsets = np.append(samples.offsets[:-1][is_kept], samples.offsets[-1])
        return Slice(value.labels.take(is_kept), replace(samples, offsets=offsets))


Turn = Callable[[Callable[[float], Awaitable[SliceReply]]], Awaitable[SliceReply]]
"""Calls its argument when there is a place for it, with the seconds that the call may take."""


class _Lane:
    """Some shards, one after the other."""

    def __init__(self, links: Links, selection: ExportSelection, turn: Turn, shards: Iterable[int]) -> None:
        self._links = links
        self._selection = selection
        self._turn = turn
        self._shards = deque(shards)
        self._cursor = Cursor()

    @property
    def has_more(self) -> bool:
        return bool(self._shards)

    async def next(self) -> SliceReply:
        reply = await self._turn(self._ask)
        following = reply.message.following
        if following is None:
            self._shards.popleft()
        self._cursor = following or Cursor()
        return reply

    async def _ask(self, timeout_s: float) -> SliceReply:
        selection = self._selection
        body = ExportBody(
            selection.selectors, selection.start_ms, selection.end_ms, self._cursor, SLICE_SAMPLES, SLICE_BYTES_MAX
        )
        shards = (self._shards[0],)
        (reply,) = await self._links.call("series.export", shards=shards, body=pack(body), timeout_s=timeout_s)
        require_whole(reply.message.warnings)
        return SliceReply(unpack(reply.message.body, ExportReply), reply.message.frames)


async def slices(links: Links, selection: ExportSelection, turn: Turn) -> AsyncGenerator[SliceReply, None]:
    """All samples of the selection. The next slices are read while one is used.

    Raises Unavailable when a shard is missing or lacks samples, since an export is whole or ends with an error.
    """
    lanes_count = min(LANES_MAX, max(1, links.worker_count()))
    lanes = [_Lane(links, selection, turn, range(first, links.shards, lanes_count)) for first in range(lanes_count)]
    coming = {asyncio.ensure_future(lane.next()): lane for lane in lanes if lane.has_more}
    try:
        while coming:
            done, _ = await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
            task = done.pop()
            lane = coming.pop(task)
            reply = task.result()
            if lane.has_more:
                coming[asyncio.ensure_future(lane.next())] = lane
            yield reply
    finally:
        for task in coming:
            task.cancel()
        await asyncio.gather(*coming, return_exceptions=True)
