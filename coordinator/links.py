"""The coordinator's end of the wire: which workers are there, and calls to them with deadlines and partial answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import zmq

from proto import cluster_pb2
from shared import errors, wire
from shared.config import Settings
from shared.telemetry import event
from shared.wire import Frame, Reply, Request

SILENCE_S = 2.0
"""A worker that has not beaten for this long (four beats) is down."""
SWEEP_S = 0.25
LINGER_MS = 500
SEND_QUEUE_MAX = 2000
"""Messages ZeroMQ may hold for one worker: above what `worker_requests_max` lets out, so that it never decides."""

SHARD_STATES = {
    cluster_pb2.ShardState.LOADING: "loading",
    cluster_pb2.ShardState.READY: "ready",
    cluster_pb2.ShardState.FAILED: "failed",
}


@dataclass(slots=True)
class Answer:
    """One worker's reply, for the shards that took part."""

    worker: str
    shards: tuple[int, ...]
    reply: Reply
    elapsed_ms: float


@dataclass(slots=True)
class FanOut:
    """What came of asking several shards. `missing`: shard → why it is not in the answer."""

    answers: list[Answer]
    missing: dict[int, str]

    def warnings(self) -> list[str]:
        """One text a missing shard, and what the others say is missing from theirs, for the envelope."""
        missing = [f"shard {shard} is missing from this answer: {why}" for shard, why in sorted(self.missing.items())]
        return missing + [text for answer in self.answers for text in answer.reply.warnings]


@dataclass(slots=True)
class Shard:
    """What the coordinator knows of one shard. `state`: "down", "loading", "ready" or "failed"."""

    number: int
    state: str = "down"
    detail: str = "no worker has registered it"
    worker: str | None = None
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[Reply]
    bytes: int


@dataclass(slots=True)
class _Worker:
    name: str
    identity: bytes
    pid: int
    seen: float
    shards: tuple[int, ...] = ()
    pending: dict[bytes, _Pending] = field(default_factory=dict)
    pending_bytes: int = 0


class _WorkerGone(Exception):
    """The worker died, went silent or was never there; the text says which."""


class Links:
    """All connections to workers. Everything runs on the event loop that `open` was called on."""

    def __init__(self, settings: Settings, cluster_id: str, address: str) -> None:
        self._settings = settings
        self._cluster_id = cluster_id
        self._address = address
        self._workers: dict[bytes, _Worker] = {}
        self._states = [Shard(number) for number in range(settings.shards)]
        self._ids = itertools.count(1)
        self._drain_due = False
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def shards(self) -> int:
        return len(self._states)

    def states(self) -> Sequence[Shard]:
        """Every shard's state, by number."""
        return self._states

    def workers(self) -> list[tuple[str, int, tuple[int, ...], int]]:
        """(name, process id, shards, requests in flight) of every worker that is there."""
        return sorted((w.name, w.pid, w.shards, len(w.pending)) for w in self._workers.values())

    async def open(self) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MAX)
        self._socket.bind(self._address)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._loop.remove_reader(self._socket.fileno())
        for worker in list(self._workers.values()):
            self._remove(worker, "the coordinator is stopping")
        self._socket.close()

    # Asking

    def unready(self, shards: Iterable[int] | None = None) -> dict[int, str]:
        """Of these shards (default all) those that cannot answer now, and why."""
        numbers = range(len(self._states)) if shards is None else shards
        return {n: _why(self._states[n]) for n in numbers if self._states[n].state != "ready"}

    def require(self, shards: Iterable[int]) -> None:
        """Raises Unavailable, naming each, unless all these shards are ready."""
        missing = self.unready(shards)
        if missing:
            raise _unavailable(missing)

    async def fan_out(
        self,
        method: str,
        *,
        shards: Iterable[int] | None = None,
        body: Frame = b"",
        frames: Sequence[Frame] = (),
        parts: Mapping[int, Sequence[Frame]] | None = None,
        timeout_s: float,
    ) -> FanOut:
        """Ask shards (default: those of `parts`, else all), one message a worker; return what answered in time.

        Raises the worker's error when it says the request itself is at fault (or the worker has a defect), Overloaded
        when a worker's queue is full, Unavailable when no shard answered.
        """
        result = await self._ask(method, shards, body, frames, parts, timeout_s)
        if not result.answers:
            raise _unavailable(result.missing)
        return result

    async def call(
        self,
        method: str,
        *,
        shards: Iterable[int] | None = None,
        body: Frame = b"",
        frames: Sequence[Frame] = (),
        parts: Mapping[int, Sequence[Frame]] | None = None,
        timeout_s: float,
    ) -> list[Answer]:
        """As `fan_out`, for writes: nothing is sent unless every shard is ready, and every one must answer.

        Raises Unavailable when one does not; some shards may have taken their part then, so what is sent must be safe
        to send again whole.
        """
        numbers = self._numbers(shards, parts)
        self.require(numbers)
        result = await self._ask(method, numbers, body, frames, parts, timeout_s)
        if result.missing:
            raise _unavailable(result.missing)
        return result.answers

    def _numbers(self, shards: Iterable[int] | None, parts: Mapping[int, Sequence[Frame]] | None) -> list[int]:
        if shards is not None:
            return list(shards)
        return list(parts) if parts is not None else list(range(len(self._states)))

    async def _ask(
        self,
        method: str,
        shards: Iterable[int] | None,
        body: Frame,
        frames: Sequence[Frame],
        parts: Mapping[int, Sequence[Frame]] | None,
        timeout_s: float,
    ) -> FanOut:
        numbers = self._numbers(shards, parts)
        missing = self.unready(numbers)
        owners = self._owners(n for n in numbers if n not in missing)
        deadline = time.monotonic() + timeout_s
        asked = []
        for worker, owned in owners:
            own_parts = {n: parts[n] for n in owned if n in parts} if parts is not None else {}
            request = Request(method, owned, deadline, body, frames, own_parts)
            asked.append(self._ask_worker(worker, request))
        outcomes = await _all(asked)
        answers = []
        for (_, owned), outcome in zip(owners, outcomes, strict=True):
            if isinstance(outcome, str):
                missing.update(dict.fromkeys(owned, outcome))
                continue
            missing.update(outcome.reply.shard_errors)
            outcome.shards = tuple(n for n in owned if n not in outcome.reply.shard_errors)
            if outcome.shards:
                answers.append(outcome)
        return FanOut(answers, missing)

    def _owners(self, shards: Iterable[int]) -> list[tuple[_Worker, tuple[int, ...]]]:
        by_name = {worker.name: worker for worker in self._workers.values()}
        owned: dict[str, list[int]] = {}
        for number in shards:
            owned.setdefault(self._states[number].worker or "", []).append(number)
        return [(by_name[name], tuple(numbers)) for name, numbers in owned.items()]

    async def _ask_worker(self, worker: _Worker, request: Request) -> Answer | str:
        """The worker's answer, or why there is none."""
        started = time.monotonic()
        request_id = next(self._ids).to_bytes(8, "big")
        pending = self._send(worker, request_id, request)
        try:
            async with asyncio.timeout(request.time_left):
                reply = await pending.future
        except TimeoutError:
            self._cancel(worker, request_id)
            return f"{worker.name} did not answer within {time.monotonic() - started:.3g} s"
        except _WorkerGone as gone:
            return str(gone)
        except asyncio.CancelledError:
            self._cancel(worker, request_id)
            raise
        finally:
            if worker.pending.pop(request_id, None) is not None:
                worker.pending_bytes -= pending.bytes
        if reply.error_class:
            error = errors.from_wire(reply.error_class, reply.error)
            if isinstance(error, errors.Unavailable):
                return str(error)
            raise error
        return Answer(worker.name, request.shards, reply, (time.monotonic() - started) * 1000)

    def _send(self, worker: _Worker, request_id: bytes, request: Request) -> _Pending:
        message = wire.encode_request(request_id, request)
        size = sum(memoryview(frame).nbytes for frame in message)
        settings = self._settings
        if len(worker.pending) >= settings.worker_requests_max:
            raise errors.Overloaded(
                f"{worker.name} has {len(worker.pending)} requests in flight, the limit is "
                f"{settings.worker_requests_max} (TRIPTYCH_WORKER_REQUESTS_MAX); try again later"
            )
        if worker.pending and worker.pending_bytes + size > settings.worker_bytes_max:
            raise errors.Overloaded(
                f"{worker.name} has {worker.pending_bytes} bytes in flight, the limit is "
                f"{settings.worker_bytes_max} (TRIPTYCH_WORKER_BYTES_MAX); try again later"
            )
        pending = _Pending(self._loop.create_future(), size)
        worker.pending[request_id] = pending
        worker.pending_bytes += size
        if not self._transmit([worker.identity, *message]):
            pending.future.set_exception(_WorkerGone(f"{worker.name} is not connected"))
        return pending

    def _cancel(self, worker: _Worker, request_id: bytes) -> None:
        self._transmit([worker.identity, *wire.encode_cancel(request_id)])

    def _transmit(self, frames: Sequence[Frame]) -> bool:
        try:
            wire.send(self._socket, frames)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return False
        finally:
            # The socket's descriptor is edge-triggered: a send may swallow the edge of a message that came meanwhile.
            if not self._drain_due:
                self._drain_due = True
                self._loop.call_soon(self._drain)
        return True

    # Hearing

    def _drain(self) -> None:
        self._drain_due = False
        while not self._socket.closed and cast(int, self._socket.getsockopt(zmq.EVENTS)) & wire.READABLE:
            frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            identity, message = frames[0].bytes, [frame.buffer for frame in frames[1:]]
            if wire.kind_of(message) == wire.REGISTER:
                self._register(identity, wire.decode_register(message))
            else:
                self._deliver(identity, message)

    def _deliver(self, identity: bytes, message: Sequence[Frame]) -> None:
        request_id, reply = wire.decode_reply(message)
        worker = self._workers.get(identity)
        pending = worker.pending.get(request_id) if worker is not None else None
        if pending is not None and not pending.future.done():
            pending.future.set_result(reply)

    def _register(self, identity: bytes, message: cluster_pb2.Register) -> None:
        if message.cluster_id != self._cluster_id:
            event(
                logging.ERROR, "a worker of another cluster called", worker=message.worker, cluster=message.cluster_id
            )
            return
        worker = self._workers.get(identity)
        if worker is None:
            for other in [w for w in self._workers.values() if w.name == message.worker]:
                self._remove(other, f"{other.name} has restarted")
            worker = _Worker(message.worker, identity, message.pid, 0.0)
            self._workers[identity] = worker
            event(logging.INFO, "worker registered", worker=worker.name, pid=worker.pid, shards=len(message.shards))
        worker.seen = time.monotonic()
        worker.shards = tuple(entry.shard for entry in message.shards)
        for entry in message.shards:
            shard = self._states[entry.shard]
            shard.worker, shard.state, shard.detail = worker.name, SHARD_STATES[entry.state], entry.detail
            shard.counts = dict(entry.counts)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            # An event loop that was busy has not read the beats yet: they wait in the socket, the worker is not silent.
            self._drain()
            for worker in list(self._workers.values()):
                if now - worker.seen > SILENCE_S:
                    self._remove(worker, f"{worker.name} is down (no sign of life for {SILENCE_S:g} s)")

    def _remove(self, worker: _Worker, why: str) -> None:
        event(logging.WARNING, "worker is gone", worker=worker.name, pid=worker.pid, why=why)
        self._workers.pop(worker.identity, None)
        for number in worker.shards:
            if self._states[number].worker == worker.name:
                self._states[number] = Shard(number, "down", why)
        for pending in worker.pending.values():
            if not pending.future.done():
                pending.future.set_exception(_WorkerGone(why))


async def _all(calls: Sequence[Coroutine[None, None, Answer | str]]) -> list[Answer | str]:
    """All results; when one raises, the others are cancelled (and their workers told) before it goes on."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        raise


def _why(shard: Shard) -> str:
    if shard.state == "loading":
        return f"{shard.worker} is still loading it"
    if shard.state == "failed":
        return f"{shard.worker} could not load it: {shard.detail}"
    return shard.detail


def _unavailable(missing: Mapping[int, str]) -> errors.Unavailable:
    texts = [f"shard {shard}: {why}" for shard, why in sorted(missing.items())]
    return errors.Unavailable("not available: " + "; ".join(texts))
