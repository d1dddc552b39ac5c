"""Calls of methods of several workers at once, from what each is asked to what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared import errors, tracing
from shared.config import Settings
from shared.reference_frames import is_references
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
    """What came of a call. `missing`: shard → why it is not in the replies."""

    replies: list[WorkerReply]
    missing: dict[int, str]

    @classmethod
    def of(cls, parts: Sequence[WorkerCall], missing: dict[int, str]) -> FanOut:
        """Of the parts of a call, each of which has its outcome; `missing`: shards that were not asked."""
        replies = []
        for part in parts:
            outcome = part.outcome
            if not isinstance(outcome, WorkerReply):
                missing.update(dict.fromkeys(part.shards, outcome or ""))
                continue
            failed = outcome.message.shard_errors
            if failed:
                missing.update(failed)
                outcome.shards = tuple(n for n in part.shards if n not in failed)
            if outcome.shards:
                replies.append(outcome)
        return cls(replies, missing)

    def warnings(self) -> list[str]:
        """One text a missing shard, and what the others say is missing from theirs, for the envelope."""
        missing = [f"shard {shard} is missing from this answer: {why}" for shard, why in sorted(self.missing.items())]
        return missing + [text for reply in self.replies for text in reply.message.warnings]


def may_grow(method: str, parts: Mapping[int, Sequence[Frame]]) -> bool:
    """Whether a request may bring series that the worker does not have: it has labels."""
    return method == "series.write" and not all(is_references(frame) for frames in parts.values() for frame in frames)


def require_whole(warnings: Sequence[str]) -> None:
    """For a client that wants all or nothing: raises Unavailable if a warning says that the answer lacks something."""
    if warnings:
        raise errors.Unavailable("; ".join(warnings))


@dataclass(slots=True)
class Waits:
    """How long work waited for its turn; of calls to workers, from call to reply, less the time in which the worker
    worked on them."""

    calls: int = 0
    ms: float = 0.0

    def add(self, ms: float) -> None:
        self.calls += 1
        self.ms += ms

    def mean_s(self) -> float:
        """The mean since it was last taken, in seconds."""
        return self.ms / self.calls / 1000 if self.calls else 0.0

    def taken(self) -> float:
        """As `mean_s`, which begins anew with this."""
        mean_s = self.mean_s()
        self.calls, self.ms = 0, 0.0
        return mean_s


@dataclass(frozen=True, slots=True)
class Question:
    """What workers are asked, and how long their answers are waited for; see `shared.wire.Request`. `parts`: frames for
    single shards."""

    method: str
    timeout_s: float
    body: Frame = b""
    frames: Sequence[Frame] = ()
    parts: Mapping[int, Sequence[Frame]] | None = None
    processor_s: float = 0.0

    def request(self, shards: tuple[int, ...], asked_at: float) -> Request:
        """Its part for one worker, of these shards."""
        parts = {n: self.parts[n] for n in shards if n in self.parts} if self.parts is not None else {}
        return Request(self.method, shards, asked_at + self.timeout_s, self.body, self.frames, parts, self.processor_s)


IndexVersion = tuple[bytes, int]
"""Of a worker's index of series: its process, and the number of writes that may have brought series."""


@dataclass(slots=True)
class Worker:
    """`pending`: what it has been asked and has not answered, by request id. `growths`: how many writes it was sent
    that may bring series; `growing`: those that it has not answered, if nobody waits for the answer any more either."""

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
        """What the worker is asked now is answered from this version of its index, or a later one. None while nobody
        knows: while a write that may bring series is on its way, or if it was lost, which ends with the process."""
        return None if self.growing else (self.identity, self.growths)

    def require_room(self, size: int, settings: Settings) -> None:
        """Raises Overloaded when the worker has no room for another request of this many bytes."""
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
    """What is asked of several workers at once, under one request id. `done` is set when every part has its outcome,
    at the deadline, or when a worker's `error` makes the other replies worthless."""

    id: bytes
    asked_at: float
    done: asyncio.Future[None]
    http_request: str = ""  # the id of the HTTP request that it is made for
    awaited: int = 0  # parts that were sent off and have no outcome
    error: errors.TriptychError | None = None
    method: str = ""

    def finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True)
class WorkerCall:
    """One worker's part of a call. `outcome`: its reply, or why there is none; None while it is awaited. `samples`: how
    many a query has read by the worker's last heartbeat. `span`: of a request that is traced. `may_grow`: it is a write
    that may bring series."""

    call: MethodCall
    worker: Worker
    shards: tuple[int, ...]
    bytes: int
    outcome: WorkerReply | str | None = None
    samples: int = 0
    span: Any = None
    may_grow: bool = False

    def send_off(self) -> None:
        """It is on its way."""
        if self.may_grow:
            self.worker.growths += 1
            self.worker.growing.add(self.call.id)
        self.worker.pending[self.call.id] = self
        self.worker.pending_bytes += self.bytes
        self.call.awaited += 1

    def end_span(self) -> None:
        """The call is over."""
        if self.span is None:
            return
        took_s = time.monotonic() - self.call.asked_at
        if isinstance(self.outcome, WorkerReply):
            tracing.end(self.span, took_s - self.outcome.elapsed_ms / 1000)
        else:
            tracing.end(self.span, failed=True)

    def settle(self, outcome: WorkerReply | str) -> None:
        """It was sent off, and this is its outcome."""
        del self.worker.pending[self.call.id]
        self.worker.pending_bytes -= self.bytes
        self.outcome = outcome
        self.call.awaited -= 1
        if not self.call.awaited:
            self.call.finish()


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was sent to workers. `timer`: ends the call at its deadline."""

    call: MethodCall
    parts: Sequence[WorkerCall]
    timer: asyncio.TimerHandle
