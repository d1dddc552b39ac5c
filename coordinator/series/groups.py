"""Remote writes on their way to the workers: requests that arrive while others are being written are sent together.

A message to a worker, its reply and the commit there cost the same for one request as for several: about as much as
everything else that a request of 2,000 samples needs. A request that finds no other under way is sent at once, with
those that the event loop has read in the same turn.

A few senders that each wait for an answer before they send again would fall apart: one is sent alone, and the others
together while the first one waits. So a message waits until as many requests have come as were under way when the last
one ended, unless these are many, for TRIPTYCH_COMMIT_DELAY at most, and only while they come in quick succession.

Large requests gain little from each other. They wait for none, and are sent behind the message under way.
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

from coordinator.calls import Question, WorkerReply
from coordinator.links import Links
from coordinator.prompt_futures import PromptFuture
from coordinator.series import known_samples
from coordinator.series.known_samples import KnownSamples
from coordinator.series.lessons import Receipt
from shared import wire
from shared.config import Settings
from shared.errors import Overloaded, Unavailable
from shared.wire import Frame

METHOD = "series.write"
IN_FLIGHT_USUAL, IN_FLIGHT_MAX = 1, 2
"""Messages under way at once, usually and at most. With two, the workers read one while they store the other, but
more and smaller ones take a fifth more processor time: for messages, replies and commits."""
LARGE_BYTES = 128 << 10
"""A message with a request of so many bytes waits for no others, and may be the second one under way: what messages
cost is little beside what it has, and the coordinator cuts the next request while the workers store it."""
SLOW_S, SLOW_BYTES_MAX = 0.004, 16 << 10
"""When the last message has been under way for so long, a second one of so few bytes may follow it: where processors or
the disk are busy with other work, its requests would wait for longer than they take."""
GROUP_REQUESTS_MAX = 64
GROUP_BYTES_MAX = 16 << 20
GROUP_FRAMES_MAX = wire.FRAMES_MAX // 2
"""A message that has reached one of these takes no further request; a single request may be larger."""

GATHERED_MAX = 4
"""A message waits for others until it has so many requests, at most: with more, what they share costs each little, and
the workers would wait while the coordinator cuts them."""
QUIET_S = 0.001
"""A message waits no longer if no other request comes within this time."""


class _Stored(PromptFuture[Receipt]):
    """What a request waits for: that its samples are stored. `part`: what a receipt of its message says of them."""

    def __init__(self, group: _Group, part: Callable[[Receipt], Receipt]) -> None:
        super().__init__()
        self._group = group
        self.part = part

    def cancel(self, msg: Any = None) -> bool:
        """Its client is gone: a message for which nobody waits is given up."""
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._group.leave()
        return is_cancelled


@dataclass(slots=True)
class _Group:
    """Requests that are sent together."""

    context: Context
    """Of the request that came first: the message has its id."""
    parts: dict[int, list[Frame]] = field(default_factory=dict)
    known: list[KnownSamples] = field(default_factory=list)
    """Of requests that have nothing else: they share the last frame of each shard."""
    waiting: list[_Stored] = field(default_factory=list)
    """What each of its requests waits for."""
    awaited: int = 0
    """Requests whose clients still wait."""
    frames: int = 0
    bytes: int = 0
    is_large: bool = False
    """Whether one of its requests has LARGE_BYTES."""
    give_up: Callable[[], object] | None = None
    """Ends the message that is under way."""

    @property
    def requests(self) -> int:
        return len(self.waiting)

    def add(self, parts: Mapping[int, Sequence[Frame]], size: int) -> _Stored:
        places: dict[int, range] = {}
        for shard, frames in parts.items():
            own = self.parts.setdefault(shard, [])
            places[shard] = range(len(own), len(own) + len(frames))
            own.extend(frames)
            self.frames += len(frames)
        return self._added(size, lambda receipt: receipt.part(places))

    def add_known(self, known: KnownSamples) -> _Stored:
        self.known.append(known)
        return self._added(known.nbytes, lambda receipt: receipt.part(self.places_of(known)))

    def _added(self, size: int, part: Callable[[Receipt], Receipt]) -> _Stored:
        self.bytes += size
        self.is_large |= size >= LARGE_BYTES
        self.awaited += 1
        self.waiting.append(_Stored(self, part))
        return self.waiting[-1]

    def tell(self, result: list[WorkerReply] | Exception) -> None:
        """All who wait get what came of the message."""
        waiting, self.waiting = self.waiting, []
        if isinstance(result, Exception):
            _fail(waiting, result)
            return
        try:
            receipt = Receipt.of(result)
            parts = [stored.part(receipt) if receipt.epochs else receipt for stored in waiting]
        except Exception as error:
            _fail(waiting, error)
            return
        for stored, part in zip(waiting, parts, strict=True):
            if not stored.done():
                stored.set_result(part)

    def leave(self) -> None:
        """One of those who wait does not any more."""
        self.awaited -= 1
        if not self.awaited and self.give_up is not None:
            self.give_up()

    def seal(self) -> None:
        """Nothing more is added. The requests of known series get their frames."""
        known, self.known = self.known, []
        for shard, frame in known_samples.frames(known).items() if known else ():
            self.parts.setdefault(shard, []).append(frame)

    def places_of(self, known: KnownSamples) -> dict[int, range]:
        """Which of the group's frames are those of the request, by shard, once it is sealed."""
        ends = {shard: len(self.parts[shard]) for shard in known.shards}
        return {shard: range(end - 1, end) for shard, end in ends.items()}

    def has_room(self, known: KnownSamples | None) -> bool:
        """Whether a request may be added; `known`: if it has nothing else. Numbers of one frame have one epoch."""
        if known is not None and self.known and self.known[0].epochs is not known.epochs:
            return False
        return self.requests < GROUP_REQUESTS_MAX and self.bytes < GROUP_BYTES_MAX and self.frames < GROUP_FRAMES_MAX


def _fail(waiting: Sequence[_Stored], error: Exception) -> None:
    """All who wait get this error. It is not raised here: its traceback would have those who keep it, and only the
    collector would free them with their samples."""
    for stored in waiting:
        if not stored.done():
            stored.set_exception(error)
            stored.exception()  # asyncio must not log it if nobody waits any more


class SampleWrites:
    """For the event loop's thread only."""

    def __init__(self, settings: Settings, links: Links) -> None:
        self._settings = settings
        self._links = links
        self._in_flight = 0
        self._waiting: deque[_Group] = deque()
        self._waiting_bytes = 0
        self._is_due = False
        """Whether `_look` is called in the next turn of the event loop: for all requests of this one."""
        self._expected = 1
        """Requests that the next message waits for."""
        self._gathers_until = 0.0
        """The time until which it does; 0: it does not yet."""
        self._quiet: asyncio.TimerHandle | None = None
        self._launched = 0.0
        """When the last message was sent."""

    @property
    def waiting_requests(self) -> int:
        """Requests that wait for others to be stored."""
        return sum(group.requests for group in self._waiting)

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    async def write(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> Receipt:
        """Return when the samples of these frames (shard → of `remote_write.cut`), or of `known`, which has none beside
        it, are stored, but for those of stale frames, which the receipt names.

        Raises Unavailable when a shard is missing or fails, which may be one that only another request of the same
        message needs; some of the samples may be stored then. Raises Overloaded when too many bytes wait already.
        """
        return await self.submit(parts, known)

    def submit(self, parts: Mapping[int, Sequence[Frame]], known: KnownSamples | None = None) -> PromptFuture[Receipt]:
        """As `write`, for a caller that does not wait; raises what is known at once. A client that disconnects, whose
        future is cancelled, does not take the message from others."""
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
        return stored  # after two messages at most

    def _waiting_group(self, shards: Iterable[int], size: int, known: KnownSamples | None) -> _Group:
        """The group that takes a request of so many bytes to these shards. Raises Unavailable, Overloaded."""
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
        """Send the next group, unless others that belong into it are about to come."""
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
        """Send the next group behind the one under way if that is slow, or look again when it is."""
        if self._waiting[0].bytes > SLOW_BYTES_MAX:
            return
        left_s = self._launched + SLOW_S - time.monotonic()
        if left_s > 0:
            self._quiet = asyncio.get_running_loop().call_later(left_s, self._look)
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
            # In a turn of its own: it may be so for the next group as well.
            asyncio.get_running_loop().call_soon(self._answered, group, error)
        else:
            group.give_up = call.finish

    def _hold(self, group: _Group) -> None:
        held = asyncio.get_running_loop().create_task(self._links.barrier.passed(METHOD))
        group.give_up = held.cancel
        held.add_done_callback(partial(self._let_go, group))

    def _let_go(self, group: _Group, held: asyncio.Task[None]) -> None:
        """Writes are not held back any more, or nobody waits for this one."""
        group.give_up = None
        if held.cancelled():
            self._answered(group, Unavailable("nobody waits for this write any more"))
        else:
            self._send(group)

    def _answered(self, group: _Group, result: list[WorkerReply] | Exception) -> None:
        """Send the next group before the requests of this one are answered: workers have nothing to do meanwhile."""
        group.give_up = None
        self._in_flight -= 1
        self._expected = min(GATHERED_MAX, group.requests + self.waiting_requests)
        try:
            self._look()
        finally:
            group.tell(result)
