"""Remote writes on their way to the workers: requests that arrive while others are being written are sent together.

A message to a worker, its reply and the commit there cost the same for one request as for several: about as much as
everything else that a request of 2,000 samples needs. A request that finds no other under way is sent at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator.links import Links
from coordinator.series.lessons import Receipt
from shared import wire
from shared.config import Settings
from shared.errors import Overloaded
from shared.wire import Frame

IN_FLIGHT_MAX = 1
"""Messages under way at once. With two of them the workers read one while they store the other, but more and smaller
ones take a fifth more processor time: for messages, replies and commits."""
GROUP_REQUESTS_MAX = 64
GROUP_BYTES_MAX = 16 << 20
GROUP_FRAMES_MAX = wire.FRAMES_MAX // 2
"""A message that has reached one of these takes no further request; a single request may be larger."""


@dataclass(slots=True)
class _Group:
    """Requests that are sent together. `done` gets its result when they are stored, or the error when they are not."""

    done: asyncio.Future[Receipt]
    parts: dict[int, list[Frame]] = field(default_factory=dict)
    requests: int = 0
    frames: int = 0
    bytes: int = 0

    def add(self, parts: Mapping[int, Sequence[Frame]], size: int) -> dict[int, range]:
        """Returns which of the group's frames are those of the request, by shard."""
        places: dict[int, range] = {}
        for shard, frames in parts.items():
            own = self.parts.setdefault(shard, [])
            places[shard] = range(len(own), len(own) + len(frames))
            own.extend(frames)
            self.frames += len(frames)
        self.requests += 1
        self.bytes += size
        return places

    def has_room(self) -> bool:
        return self.requests < GROUP_REQUESTS_MAX and self.bytes < GROUP_BYTES_MAX and self.frames < GROUP_FRAMES_MAX


class SampleWrites:
    """For the event loop's thread only."""

    def __init__(self, settings: Settings, links: Links) -> None:
        self._settings = settings
        self._links = links
        self._in_flight = 0
        self._waiting: deque[_Group] = deque()
        self._waiting_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for others to be stored."""
        return sum(group.requests for group in self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    async def write(self, parts: Mapping[int, Sequence[Frame]]) -> Receipt:
        """Return when the samples of these frames (shard → of `remote_write.cut`) are stored, but for those of stale
        frames, which the receipt names.

        Raises Unavailable when a shard is missing or fails, which may be one that only another request of the same
        message needs; some of the samples may be stored then. Raises Overloaded when too many bytes wait already.
        """
        if self._in_flight < IN_FLIGHT_MAX:
            return await self._send(parts)
        self._links.require(parts)
        size = sum(wire.size_of(frame) for frames in parts.values() for frame in frames)
        if self._waiting and self._waiting_bytes + size > self._settings.worker_bytes_max:
            raise Overloaded(
                f"{self._waiting_bytes} bytes of samples wait to be sent to the workers, the limit is "
                f"{self._settings.worker_bytes_max} (TRIPTYCH_WORKER_BYTES_MAX); try again later"
            ).because("worker_bytes")
        if not self._waiting or not self._waiting[-1].has_room():
            self._waiting.append(_Group(asyncio.get_running_loop().create_future()))
        group = self._waiting[-1]
        places = group.add(parts, size)
        self._waiting_bytes += size
        # A client that disconnects does not cancel the others' write. A request waits for at most two messages.
        receipt = await asyncio.shield(group.done)
        return receipt.part(places)

    async def _send(self, parts: Mapping[int, Sequence[Frame]]) -> Receipt:
        self._in_flight += 1
        try:
            timeout_s = self._settings.write_timeout_ms / 1000
            return Receipt.of(await self._links.call("series.write", parts=parts, timeout_s=timeout_s))
        finally:
            self._in_flight -= 1
            self._launch()

    def _launch(self) -> None:
        if self._waiting and self._in_flight < IN_FLIGHT_MAX:
            group = self._waiting.popleft()
            self._waiting_bytes -= group.bytes
            task = asyncio.ensure_future(self._send_group(group))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send_group(self, group: _Group) -> None:
        try:
            receipt = await self._send(group.parts)
        except asyncio.CancelledError:
            group.done.cancel()
            raise
        except Exception as error:
            group.done.set_exception(error)
            group.done.exception()  # if no client waits any more, asyncio must not log the error as unhandled
        else:
            group.done.set_result(receipt)
