"""A method call on several workers: what each worker is asked, its reply, and the merged outcome."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared import errors, tracing
from shared.frames.references import is_references
from shared.settings import Settings
from shared.wire import Frame, Reply, Request


@dataclass(slots=True)
class WorkerReply:
    """One worker's reply, and the shards that took part in it."""

    worker: str
    shards: tuple[int, ...]
    message: Reply
    elapsed_ms: float


@dataclass(slots=True)
class FanOut:
    """The outcome of a call. `missing`: shard → why it is not in the replies."""

    replies: list[WorkerReply]
    missing: dict[int, str]
    _warnings: list[str] | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, parts: Sequence[WorkerCall], missing: dict[int, str]) -> FanOut:
        """The outcome of a call whose parts all have an outcome. `missing`: the shards that were not asked."""
        replies = []
        for part in parts:
            outcome = part.outcome
            if not isinstance(outcome, WorkerReply):
                missing.update(dict.fromkeys(part.shards, outcome or ""))
                continue
            shard_errors = outcome.message.shard_errors
            if shard_errors:
                missing.update(shard_errors)
                outcome.shards = tuple(n for n in part.shards if n not in shard_errors)
            if outcome.shards:
                replies.append(outcome)
        return cls(replies, missing)

    def warnings(self) -> list[str]:
        """Warnings for the response envelope: one for each missing shard, and those that the replies contain. They are
        made once, since many requests may share an outcome."""
        if self._warnings is None:
            missing = [
                f"shard {shard} is missing from this answer: {why}" for shard, why in sorted(self.missing.items())
            ]
            self._warnings = missing + [text for reply in self.replies for text in reply.message.warnings]
        return list(self._warnings)


def may_grow(method: str, parts: Mapping[int, Sequence[Frame]]) -> bool:
    """Whether a request may add series to a worker: whether one of its frames has labels instead of series numbers."""
    return method == "series.write" and not all(is_references(frame) for frames in parts.values() for frame in frames)


def require_whole(warnings: Sequence[str]) -> None:
    """For clients that do not accept partial results: raises Unavailable if there are warnings."""
    if warnings:
        raise errors.Unavailable("; ".join(warnings))


@dataclass(slots=True)
class Waits:
    """How long work waited for its turn. For a call to a worker, it is the time from call to reply without the time
    that the worker spent on the call."""

    calls: int = 0
    ms: float = 0.0

    def add(self, ms: float) -> None:
        self.calls += 1
        self.ms += ms

    def mean_s(self) -> float:
        """The mean wait in seconds since the last call of `taken`."""
        return self.ms / self.calls / 1000 if self.calls else 0.0

    def taken(self) -> float:
        """As `mean_s`, and starts a new mean."""
        mean_s = self.mean_s()
        self.calls, self.ms = 0, 0.0
        return mean_s


@dataclass(frozen=True, slots=True)
class Question:
    """What workers are asked, and how long to wait for their replies; see `shared.wire.Request`. `parts`: shard →
    frames for this shard only."""

    method: str
    timeout_s: float
    body: Frame = b""
    frames: Sequence[Frame] = ()
    parts: Mapping[int, Sequence[Frame]] | None = None
    processor_s: float = 0.0

    def request(self, shards: tuple[int, ...], asked_at: float) -> Request:
        """The request for the worker that has these shards."""
        parts = {n: self.parts[n] for n in shards if n in self.parts} if self.parts is not None else {}
        return Request(self.method, shards, asked_at + self.timeout_s, self.body, self.frames, parts, self.processor_s)


IndexVersion = tuple[bytes, int]
"""The version of a worker's series index: (identity of its process, number of writes that may have added series)."""


@dataclass(slots=True)
class Worker:
    """A connected worker. `pending`: request id → call that it has not replied to. `growths`: how many writes that may
    add series were sent to it. `growing`: the ids of those it has not replied to, including those that no caller waits
    for any more."""

    name: str
    identity: bytes
    pid: int
    seen: float
    shards: tuple[int, ...] = ()
    pending: dict[bytes, WorkerCall] = field(default_factory=dict)
    pending_bytes: int = 0
    growths: int = 0
    growing: set[bytes] = field(default_factory=set)

    @property
    def index_version(self) -> IndexVersion | None:
        """A call that is sent now is answered from this version of the worker's index, or a later one. None while the
        version is unknown: while a write that may add series is in flight or, if its reply was lost, until the worker's
        process ends."""
        return None if self.growing else (self.identity, self.growths)

    def require_room(self, size: int, settings: Settings) -> None:
        """Raises Overloaded if the worker has no room for another request of `size` bytes."""
        if len(self.pending) >= settings.worker_requests_max:
            raise errors.Overloaded(
                f"{self.name} has {len(self.pending)} requests in flight, the limit is "
                f"{settings.worker_requests_max} (TRIPTYCH_WORKER_REQUESTS_MAX); try again later"
            ).because("worker_requests")
        if self.pending and self.pending_bytes + size > settings.worker_bytes_max:
            raise errors.Overloaded(
                f"{self.name} has {self.pending_bytes} bytes in flight, the limit is "
                f"{settings.worker_bytes_max} (TRIPTYCH_WORKER_BYTES_MAX); try again later"
            ).because("worker_bytes")


@dataclass(slots=True)
class MethodCall:
    """A call of several workers at once, with one request id. `done` is set when every part has its outcome, at the
    deadline, or when a worker's `error` makes the other replies useless."""

    id: bytes
    asked_at: float
    done: asyncio.Future[None]
    http_request: str = ""  # the id of the HTTP request that caused the call
    awaited: int = 0  # parts that were sent and have no outcome yet
    error: errors.TriptychError | None = None
    method: str = ""

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True)
class WorkerCall:
    """One worker's part of a call. `outcome`: its reply, or why there is none; None while it is awaited. `samples`: how
    many samples a query had read at the worker's last heartbeat. `span`: set if the request is traced. `may_grow`: the
    call is a write that may add series."""

    call: MethodCall
    worker: Worker
    shards: tuple[int, ...]
    bytes: int
    outcome: WorkerReply | str | None = None
    samples: int = 0
    span: Any = None
    may_grow: bool = False

    def send_off(self) -> None:
        """Note that the call has been sent."""
        if self.may_grow:
            self.worker.growths += 1
            self.worker.growing.add(self.call.id)
        self.worker.pending[self.call.id] = self
        self.worker.pending_bytes += self.bytes
        self.call.awaited += 1

    def end_span(self) -> None:
        """End the span of the call, which is over."""
        if self.span is None:
            return
        elapsed_s = time.monotonic() - self.call.asked_at
        if isinstance(self.outcome, WorkerReply):
            tracing.end(self.span, elapsed_s - self.outcome.elapsed_ms / 1000)
        else:
            tracing.end(self.span, failed=True)

    def settle(self, outcome: WorkerReply | str) -> None:
        """Set the outcome of the call, which has been sent."""
        del self.worker.pending[self.call.id]
        self.worker.pending_bytes -= self.bytes
        self.outcome = outcome
        self.call.awaited -= 1
        if not self.call.awaited:
            self.call.finish()


@dataclass(frozen=True, slots=True)
class SentQuestion:
    """A question that was sent to workers. `timer` ends the call at its deadline."""

    call: MethodCall
    parts: Sequence[WorkerCall]
    timer: asyncio.TimerHandle
