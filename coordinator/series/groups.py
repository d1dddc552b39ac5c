"""Sends remote writes to the workers. Requests that arrive while others are being written are sent in one message.

A message to a worker, its reply and the commit there cost the same for one request as for several, and about as much
as all other work on a request of 2,000 samples. If no message is in flight, a request is sent at once, together with
the requests that the event loop read in the same iteration.

A few senders that each wait for a response before they send again would drift apart: one request would be sent alone,
and then the others together while the first sender waits. Therefore a message waits for as many requests as were under
way when the last message ended, but for at most GATHERED_MAX. It waits for at most TRIPTYCH_COMMIT_DELAY, and only as
long as requests arrive in quick succession.

Large requests gain little from sharing a message. They do not wait for others, and are sent even while another message
is in flight.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from coordinator.fanout.calls import Question, WorkerReply
from coordinator.fanout.links import Links
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.series import known_samples
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import Receipt
from shared import wire
from shared.errors import Overloaded, Unavailable
from shared.settings import Settings
from shared.wire import Frame

METHOD = "series.write"
IN_FLIGHT_USUAL, IN_FLIGHT_MAX = 1, 2
"""Messages in flight at the same time, usually and at most. With two in flight, the workers read one while they store
the other; but there are more and smaller messages then, whose replies and commits take a fifth more CPU time."""
LARGE_BYTES = 128 << 10
"""A message with a request of at least this size does not wait for others, and may be the second one in flight. The
fixed cost of a message is small compared to its content, and the coordinator splits the next request while the workers
store this one."""
SLOW_S, SLOW_BYTES_MAX = 0.004, 16 << 10
"""If a message has been in flight for SLOW_S, a second one of at most SLOW_BYTES_MAX may follow it. Otherwise, while
CPUs or the disk are busy with other work, small requests would wait for longer than they take."""
GROUP_REQUESTS_MAX = 64
GROUP_BYTES_MAX = 16 << 20
GROUP_FRAMES_MAX = wire.FRAMES_MAX // 2
"""A message that has reached one of these limits takes no further request. A single request may be larger."""

GATHERED_MAX = 4
"""A message with this many requests waits for no more: the shared cost is already small for each, and the workers
would be idle while the coordinator splits further requests."""
QUIET_S = 0.001
"""A message stops waiting if no other request arrives within this time."""


class _Stored(PromptFuture[Receipt]):
    """Completes when the samples of a request are stored. `part` picks the request's part of the receipt of a
    message."""

    def __init__(self, group: _Group, part: Callable[[Receipt], Receipt]) -> None:
        super().__init__()
        self._group = group
        self.part = part

    def cancel(self, msg: Any = None) -> bool:
        """The client is gone. A message that no client waits for any more is abandoned."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._group.leave()
        return is_cancelled


@dataclass(slots=True)
class _Group:
    """Requests that are sent together."""

    context: Context
    """The context of the first request: the message has the id of that request."""
    parts: dict[int, list[Frame]] = field(default_factory=dict)
    known: list[KnownSamples] = field(default_factory=list)
    """Requests of known samples only. They share the last frame of each shard."""
    waiting: list[_Stored] = field(default_factory=list)
    """One future for each request."""
    awaited: int = 0
    """How many clients still wait for their request."""
    frames: int = 0
    bytes: int = 0
    is_large: bool = False
    """Whether one of its requests has LARGE_BYTES."""
    give_up: Callable[[], object] | None = None
    """Abandons the message in flight."""

    @property
    def requests(self) -> int:
        return len(self.waiting)

    def add(self, parts: Mapping[int, Sequence[Frame]], size: int) -> _Stored:
        indexes: dict[int, range] = {}
        for shard, frames in parts.items():
            shard_frames = self.parts.setdefault(shard, [])
            indexes[shard] = range(len(shard_frames), len(shard_frames) + len(frames))
            shard_frames.extend(frames)
            self.frames += len(frames)
        return self._added(size, lambda receipt: receipt.part(indexes))

    def add_known(self, known: KnownSamples) -> _Stored:
        self.known.append(known)
        return self._added(known.nbytes, lambda receipt: receipt.part(self.frame_indexes(known)))

    def _added(self, size: int, part: Callable[[Receipt], Receipt]) -> _Stored:
        self.bytes += size
        self.is_large |= size >= LARGE_BYTES
        self.awaited += 1
        self.waiting.append(_Stored(self, part))
        return self.waiting[-1]

    def tell(self, result: list[WorkerReply] | Exception) -> None:
        """Complete the futures of all requests with the result of the message."""
        waiting, self.waiting = self.waiting, []
        if isinstance(result, Exception):
            _fail(waiting, result)
            return
        try:
            receipt = Receipt.of(result)
            receipt_parts = [stored.part(receipt) if receipt.epochs else receipt for stored in waiting]
        except Exception as error:
            _fail(waiting, error)
            return
        for stored, receipt_part in zip(waiting, receipt_parts, strict=True):
            if not stored.done():
                stored.set_result(receipt_part)

    def leave(self) -> None:
        """A client no longer waits for its request."""
        self.awaited -= 1
        if not self.awaited and self.give_up is not None:
            self.give_up()

    def seal(self) -> None:
        """Write the frames of the requests of known samples. No request may be added after this."""
        known, self.known = self.known, []
        for shard, frame in known_samples.frames(known).items() if known else ():
            self.parts.setdefault(shard, []).append(frame)

    def frame_indexes(self, known: KnownSamples) -> dict[int, range]:
        """Shard → indexes of the frames that contain the samples of this request. Only valid after `seal`."""
        ends = {shard: len(self.parts[shard]) for shard in known.shards}
        return {shard: range(end - 1, end) for shard, end in ends.items()}

    def has_room(self, known: KnownSamples | None) -> bool:
        """Whether a request may be added. `known`: its samples, if it consists of known samples only: these can share a
        frame only if their series numbers have the same epochs."""
        if known is not None and self.known and self.known[0].epochs is not known.epochs:
            return False
        return self.requests < GROUP_REQUESTS_MAX and self.bytes < GROUP_BYTES_MAX and self.frames < GROUP_FRAMES_MAX


def _fail(waiting: Sequence[_Stored], error: Exception) -> None:
    """Fail all these futures. The error is not raised here: its traceback would refer to this frame and so to the
    futures, and only the garbage collector could free them and their samples."""
    for stored in waiting:
        if not stored.done():
            stored.set_exception(error)
            stored.exception()  # marks it as retrieved, so that asyncio does not log it if no client waits any more


class SampleWrites:
    """The queue of remote writes. For the event loop's thread only."""

    def __init__(self, settings: Settings, links: Links) -> None:
        self._settings = settings
        self._links = links
        self._in_flight = 0
        self._waiting: deque[_Group] = deque()
        self._waiting_bytes = 0
        self._is_due = False
        """Whether `_look` is scheduled for the next iteration of the event loop, for all requests of this iteration."""
        self._expected = 1
        """The number of requests that the next message waits for."""
        self._gathers_until = 0.0
        """Until when the next message waits for them; 0 if it does not wait yet."""
        self._quiet: asyncio.TimerHandle | None = None
        self._launched = 0.0
        """When the last message was sent (monotonic time)."""

    @property
    def waiting_requests(self) -> int:
        """The number of requests that are not sent yet."""
        return sum(group.requests for group in self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    async def write(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> Receipt:
        """Store the samples of a split request: either its frames, `parts`, or its `known` samples. Returns when all
        are stored, except those of stale frames, which the receipt names.

        Raises Unavailable if a shard is missing or fails, even if only another request of the same message needs that
        shard; some of the samples may be stored then. Raises Overloaded if too many bytes are waiting already.
        """
        return await self.submit(parts, known)

    def submit(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> PromptFuture[Receipt]:
        """As `write`, but returns a future at once; errors that are known at once are raised. When a client
        disconnects, its future is cancelled, and the other requests of the message are still stored."""
        assert known is None or not parts
        size = known.nbytes if known is not None else sum(map(wire.size_of, chain.from_iterable(parts.values())))
        group = self._waiting_group(parts if known is None else known.shards, size, known)
        if known is None:
            stored = group.add(parts, size)
        else:
            stored = group.add_known(known.copied() if self._in_flight else known)
        self._waiting_bytes += size
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._look)
        return stored  # completes after at most two messages

    def _waiting_group(self, shards: Iterable[int], size: int, known: KnownSamples | None) -> _Group:
        """The group for a request of `size` bytes to these shards. Raises Unavailable, Overloaded."""
        self._links.require(shards)
        if self._waiting and self._waiting_bytes + size > self._settings.worker_bytes_max:
            raise Overloaded(
                f"{self._waiting_bytes} bytes of samples wait to be sent to the workers, the limit is "
                f"{self._settings.worker_bytes_max} (TRIPTYCH_WORKER_BYTES_MAX); try again later"
            ).because("worker_bytes")
        if not self._waiting or not self._waiting[-1].has_room(known):
            self._waiting.append(_Group(copy_context()))
        return self._waiting[-1]

    def _look(self) -> None:
        """Send the next group, unless it has to wait for more requests."""
        self._is_due = False
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None
        if not self._waiting or self._in_flight >= IN_FLIGHT_MAX:
            return
        if self._waiting[0].is_large:
            self._launch()
            return
        if self._in_flight >= IN_FLIGHT_USUAL:
            self._follow()
            return
        if self._waiting[0].requests >= self._expected:
            self._launch()
            return
        now = time.monotonic()
        if not self._gathers_until:
            self._gathers_until = now + self._settings.commit_delay_ms / 1000
        if now >= self._gathers_until:
            self._launch()
        else:
            self._quiet = asyncio.get_running_loop().call_later(min(QUIET_S, self._gathers_until - now), self._launch)

    def _follow(self) -> None:
        """Send the next group if it is small and the message in flight is slow, or look again when that becomes
        slow."""
        if self._waiting[0].bytes > SLOW_BYTES_MAX:
            return
        remaining_s = self._launched + SLOW_S - time.monotonic()
        if remaining_s > 0:
            self._quiet = asyncio.get_running_loop().call_later(remaining_s, self._look)
        else:
            self._launch()

    def _launch(self) -> None:
        self._launched = time.monotonic()
        group = self._waiting.popleft()
        self._waiting_bytes -= group.bytes
        self._in_flight += 1
        self._quiet, self._gathers_until = None, 0.0
        group.context.run(self._send, group)

    def _send(self, group: _Group) -> None:
        try:
            group.seal()
            if self._links.barrier.is_closed:
                self._hold(group)
                return
            question = Question(METHOD, self._settings.write_timeout_ms / 1000, parts=group.parts)
            call = self._links.submit(question, partial(self._answered, group))
        except Exception as error:
            # In an iteration of its own: the next group may fail as well, and this would recurse.
            asyncio.get_running_loop().call_soon(self._answered, group, error)
        else:
            group.give_up = call.finish

    def _hold(self, group: _Group) -> None:
        barrier_task = asyncio.get_running_loop().create_task(self._links.barrier.passed(METHOD))
        group.give_up = barrier_task.cancel
        barrier_task.add_done_callback(partial(self._let_go, group))

    def _let_go(self, group: _Group, barrier_task: asyncio.Task[None]) -> None:
        """The barrier is open again, or no client waits for this write any more."""
        group.give_up = None
        if barrier_task.cancelled():
            self._answered(group, Unavailable("no client waits for this write any more"))
        else:
            self._send(group)

    def _answered(self, group: _Group, result: list[WorkerReply] | Exception) -> None:
        """Send the next group before the requests of this one are completed, since the workers are idle until then."""
        group.give_up = None
        self._in_flight -= 1
        self._expected = min(GATHERED_MAX, group.requests + self.waiting_requests)
        try:
            self._look()
        finally:
            group.tell(result)
