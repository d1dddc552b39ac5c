"""The coordinator's connections to its workers, and method calls with deadlines and partial results."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context

import zmq

from coordinator.fanout.barrier import WRITES, Barrier
from coordinator.fanout.calls import (
    FanOut,
    MethodCall,
    Question,
    SentQuestion,
    Waits,
    Worker,
    WorkerCall,
    WorkerReply,
    may_grow,
)
from coordinator.fanout.membership import Membership
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.fanout.shards import Shard, unavailable
from shared import errors, tracing, wire
from shared.measurements import Values
from shared.settings import Settings
from shared.telemetry import REQUEST_ID
from shared.wire import Frame

SWEEP_S = 0.25
LINGER_MS = 500
SEND_QUEUE_MAX = 2000
"""The most messages that ZeroMQ may queue for one worker. `worker_requests_max` is lower, so it is never reached."""


def _context() -> zmq.Context[zmq.Socket[bytes]]:
    """The ZeroMQ context. Every message wakes its I/O thread; under the batch policy, the thread does not preempt the
    event loop, but runs on another CPU or when the loop waits, and then sends all queued messages."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    if hasattr(os, "SCHED_BATCH"):
        context.set(zmq.THREAD_SCHED_POLICY, os.SCHED_BATCH)
    return context


class Links:
    """All connections to workers. For the thread of the event loop that called `open` only."""

    def __init__(self, settings: Settings, cluster_id: str, address: str) -> None:
        self._settings = settings
        self._address = address
        self._members = Membership(cluster_id, settings.shard_count())
        # Ids start at the current time: a worker may still reply to a request of the previous coordinator.
        self._ids = itertools.count(time.time_ns())
        self.waits = Waits()
        self.barrier = Barrier()
        self.measured: Callable[[str, Values], None] = lambda worker, values: None
        """Called with the measurements that a worker has sent."""
        self._drain_due = False
        self._own_context = copy_context()  # belongs to no request
        self._control: zmq.Socket[bytes] | None = None
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def shards(self) -> int:
        return len(self._members.states)

    @property
    def registrations(self) -> Mapping[str, int]:
        """Worker name → number of processes that have registered. Each one after the first is a restart."""
        return self._members.registrations

    def states(self) -> Sequence[Shard]:
        """Every shard's state, by number."""
        return self._members.states

    def workers(self) -> list[tuple[str, int, tuple[int, ...], int]]:
        """(name, process id, shards, requests in flight) of every connected worker."""
        return [(w.name, w.pid, w.shards, len(w.pending)) for w in self.connected()]

    def connected(self) -> list[Worker]:
        """All connected workers, by name."""
        return self._members.connected()

    def awaited(self) -> list[WorkerCall]:
        """The calls to which workers have not replied yet."""
        return [part for worker in self.connected() for part in worker.pending.values()]

    def worker_count(self) -> int:
        """The number of connected workers."""
        return len(self._members)

    async def open(self) -> None:
        context = _context()
        self._socket: zmq.Socket[bytes] = context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MAX)
        self._socket.bind(self._address)
        self._control = context.socket(zmq.ROUTER)
        self._control.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._control.setsockopt(zmq.LINGER, 0)
        self._control.bind(wire.control_address(self._address))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._drain)
        self._loop.add_reader(self._control.fileno(), self._drain_control)
        self._sweeper = asyncio.create_task(self._sweep())

    async def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._loop.remove_reader(self._socket.fileno())
        for worker in self.connected():
            self._members.remove(worker, "the coordinator is stopping", logging.INFO)
        self._socket.close()
        if self._control is not None:
            self._loop.remove_reader(self._control.fileno())
            self._control.close()

    # Requests

    def unready(self, shards: Iterable[int] | None = None) -> dict[int, str]:
        """Shard → why it is not ready, for those of these shards (default: all) that are not."""
        return self._members.unready(shards)

    def require(self, shards: Iterable[int]) -> None:
        """Raises Unavailable, which names each of these shards that is not ready, unless all are ready."""
        self._members.require(shards)

    async def fan_out(
        self,
        method: str,
        *,
        shards: Iterable[int] | None = None,
        body: Frame = b"",
        frames: Sequence[Frame] = (),
        parts: Mapping[int, Sequence[Frame]] | None = None,
        timeout_s: float,
        processor_s: float = 0.0,
    ) -> FanOut:
        """Send a request to shards (default: those of `parts`, else all), one message per worker. Returns the replies
        that arrive in time. `processor_s`: the CPU time that a light query may use; see `shared.wire.Request`.

        Raises the worker's error if the request is invalid or the worker has a defect, Overloaded if a worker has too
        many requests in flight, Unavailable if no shard replies.
        """
        if self.barrier.is_closed:
            await self.barrier.passed(method)
        numbers = self._numbers(shards, parts)
        question = Question(method, timeout_s, body, frames, parts, processor_s)
        result = await self._ask(question, numbers, self.unready(numbers))
        if not result.replies:
            raise unavailable(result.missing)
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
        processor_s: float = 0.0,
    ) -> list[WorkerReply]:
        """As `fan_out`, but nothing is sent unless every shard is ready, and every shard must reply.

        Raises Unavailable if one does not. Other shards may then have stored their part of a write, so it must be safe
        to repeat the whole request.
        """
        if self.barrier.is_closed:
            await self.barrier.passed(method)
        numbers = self._numbers(shards, parts)
        self.require(numbers)
        question = Question(method, timeout_s, body, frames, parts, processor_s)
        return _all_replies(await self._ask(question, numbers, {}))

    def submit(self, question: Question, then: Callable[[list[WorkerReply] | Exception], None]) -> MethodCall:
        """As `call`, but without waiting, to the shards for which the question has parts. Only while the barrier is
        open. `then` is called with the replies or the error, in the same iteration of the event loop in which the last
        reply arrives. `finish` of the returned call ends it early.

        Raises errors that are known before anything is sent; `then` is not called in that case."""
        assert question.parts is not None
        numbers = tuple(question.parts)
        self.require(numbers)
        done = PromptFuture[None]()
        sent = self._send_question(question, numbers, done)

        def finished(_: object) -> None:
            try:
                replies = _all_replies(self._outcome(sent, {}))
            except Exception as error:
                then(error)
            else:
                then(replies)

        done.at_once(finished)
        if not sent.call.awaited:
            self._loop.call_soon(sent.call.finish)
        return sent.call

    def _numbers(self, shards: Iterable[int] | None, parts: Mapping[int, Sequence[Frame]] | None) -> tuple[int, ...]:
        if shards is not None:
            return tuple(shards)
        return tuple(parts) if parts is not None else tuple(range(self.shards))

    async def _ask(self, question: Question, numbers: tuple[int, ...], missing: dict[int, str]) -> FanOut:
        """Ask the shards that are not `missing`, and wait for all replies, the deadline or an error."""
        ready = tuple(n for n in numbers if n not in missing) if missing else numbers
        sent = self._send_question(question, ready, self._loop.create_future())
        try:
            if sent.call.awaited:
                await sent.call.done
        except BaseException:
            self._release(sent)
            raise
        return self._outcome(sent, missing)

    def _send_question(self, question: Question, ready: tuple[int, ...], done: asyncio.Future[None]) -> SentQuestion:
        """Send a question to the workers of these shards. `done`: see `MethodCall`."""
        asked_at, http_request, is_traced = time.monotonic(), REQUEST_ID.get(), tracing.is_on()
        call = MethodCall(next(self._ids).to_bytes(8, "big"), asked_at, done, http_request, method=question.method)
        messages: list[tuple[WorkerCall, list[Frame]]] = []
        for worker, owned in self._members.owners_of(ready):
            request = question.request(owned, asked_at)
            request.http_request = http_request
            span = None
            if is_traced:
                attributes: tracing.Attributes = {"triptych.worker": worker.name, "triptych.shards": len(owned)}
                span, request.trace_parent = tracing.begin(f"call {question.method}", attributes)
            message = wire.encode_request(call.id, request)
            size, grows = sum(wire.size_of(frame) for frame in message), may_grow(question.method, request.parts)
            part = WorkerCall(call, worker, owned, size, span=span, may_grow=grows)
            worker.require_room(part.bytes, self._settings)
            messages.append((part, message))
        timer = self._loop.call_later(question.timeout_s, call.finish)
        sent = SentQuestion(call, [part for part, _ in messages], timer)
        try:
            for part, message in messages:
                self._send(part, message)
        except BaseException:
            self._release(sent)
            raise
        return sent

    def _release(self, sent: SentQuestion) -> None:
        """Stop waiting for replies: all have arrived, or no caller waits for them any more."""
        sent.timer.cancel()
        for part in sent.parts:
            if part.outcome is None:
                self._give_up(part)
            part.end_span()

    def _outcome(self, sent: SentQuestion, missing: dict[int, str]) -> FanOut:
        """The outcome of a question. `missing`: the shards that were not asked. Raises a worker's error."""
        self._release(sent)
        if sent.call.error is not None:
            raise sent.call.error
        return FanOut.of(sent.parts, missing)

    def _send(self, part: WorkerCall, message: Sequence[Frame]) -> None:
        worker = part.worker
        error = self._transmit([worker.identity, *message])
        if not error:
            part.send_off()
            return
        if error == zmq.EAGAIN:
            part.outcome = f"{worker.name} takes no more messages for now"
            return
        part.outcome = f"{worker.name} is not connected"
        # Remove the worker without waiting for SILENCE_S, but after reading the replies that it sent before.
        self._loop.call_soon(self._remove, worker.identity, "is not connected", context=self._own_context)

    def _give_up(self, part: WorkerCall) -> None:
        """Cancel the request at the worker: its reply is no longer awaited."""
        worker, call = part.worker, part.call
        if call.id in worker.pending:
            part.settle(f"{worker.name} did not answer within {time.monotonic() - call.asked_at:.3g} s")
            cancel = [worker.identity, *wire.encode_cancel(call.id)]
            if not self._transmit_control(cancel):
                self._transmit(cancel)

    def _transmit(self, frames: Sequence[Frame]) -> int:
        """Send a message. Returns 0 or the error; see `_send_error`."""
        try:
            return _send_error(self._socket, frames)
        finally:
            # The socket's descriptor is edge-triggered: a send may consume the edge of a message that just arrived.
            if not self._drain_due:
                self._drain_due = True
                self._loop.call_soon(self._drain, context=self._own_context)

    def _transmit_control(self, frames: Sequence[Frame]) -> bool:
        """Send a message over the connection for control messages. Returns whether it was sent."""
        if self._control is None:
            return False
        try:
            return not _send_error(self._control, frames)
        finally:
            self._loop.call_soon(self._drain_control, context=self._own_context)

    def pause_background(self) -> None:
        """Tell all workers to postpone their background work for a while."""
        for worker in self.connected():
            self._transmit_control([worker.identity, *wire.encode_pause()])

    def is_writing(self) -> bool:
        """Whether a request that changes the content of shards is in flight."""
        return any(part.call.method in WRITES for worker in self.connected() for part in worker.pending.values())

    def ask_measurements(self) -> set[str]:
        """Request measurements from all workers. Returns the names of those that were reached."""
        return {w.name for w in self.connected() if self._transmit_control([w.identity, *wire.encode_measure()])}

    # Messages from workers

    def _drain_control(self) -> None:
        """Read heartbeats. A worker connects with its first heartbeat on the connection for requests."""
        while self._control is not None and not self._control.closed and wire.readable(self._control):
            identity, *message = wire.receive(self._control)
            worker = self._members.present(bytes(identity))
            if worker is None:
                continue
            if wire.kind_of(message) == wire.MEASURE:
                self.measured(worker.name, Values(wire.decode_measurements(message).values))
            else:
                self._members.register(bytes(identity), wire.decode_register(message))

    def _drain(self) -> None:
        self._drain_due = False
        while not self._socket.closed and wire.readable(self._socket):
            identity, *message = wire.receive(self._socket)
            kind = wire.kind_of(message)
            if kind == wire.REGISTER:
                self._members.register(bytes(identity), wire.decode_register(message))
            elif kind == wire.GOODBYE:
                self._remove(bytes(identity), "has stopped")
            else:
                self._deliver(bytes(identity), message)

    def _remove(self, identity: bytes, reason: str) -> None:
        """Remove a worker if it is connected. `reason`: a predicate whose subject is the worker."""
        worker = self._members.present(identity)
        if worker is not None:
            self._members.remove(worker, f"{worker.name} {reason}")

    def _deliver(self, identity: bytes, message: Sequence[Frame]) -> None:
        worker = self._members.known(identity)
        if worker is None:
            return
        request_id = wire.request_id_of(message)
        worker.growing.discard(request_id)
        part = worker.pending.get(request_id)
        if part is None:
            return  # the call has ended
        _, reply = wire.decode_reply(message)
        if reply.error_class:
            error = errors.from_wire(reply.error_class, reply.error)
            ends_call = not isinstance(error, errors.Unavailable)
            if ends_call:
                part.call.error = part.call.error or error
            part.settle(str(error))
            if ends_call:
                part.call.finish()
        else:
            elapsed_ms = (time.monotonic() - part.call.asked_at) * 1000
            self.waits.add(elapsed_ms - reply.timings_ms.get("total", elapsed_ms))
            part.settle(WorkerReply(part.worker.name, part.shards, reply, elapsed_ms))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            # If the event loop was busy, heartbeats may wait unread in the socket, and the worker is not silent.
            self._drain_control()
            self._drain()
            self._members.remove_silent()


def _all_replies(result: FanOut) -> list[WorkerReply]:
    """The replies of all shards. Raises Unavailable if a shard is missing."""
    if result.missing:
        raise unavailable(result.missing)
    return result.replies


def _send_error(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> int:
    """Send a message. Returns 0, EHOSTUNREACH if the worker is not connected, or EAGAIN if its queue is full."""
    try:
        wire.send(socket, frames)
    except zmq.ZMQError as error:
        if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
            raise
        return error.errno
    return 0
