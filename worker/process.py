"""One worker process: receives requests, runs them in bounded lanes, replies, and beats."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

from proto import cluster_pb2
from shared import wire
from shared.config import Settings
from shared.errors import DeadlineExceeded, Internal, NotFound, Overloaded, TriptychError
from shared.telemetry import event
from shared.wire import Reply, Request
from worker.methods import Lane, Method, all_methods
from worker.series.texts import TextTable
from worker.shard import Shard

HEARTBEAT_S = 0.5
LANE_THREADS: dict[Lane, int] = {"write": 4, "read": 4, "query": 2}
LANE_QUEUE_MAX = 1024
"""Requests waiting in one lane; the coordinator's own bound is lower, so this only stops a runaway."""
LOADING_THREADS = 2
LINGER_MS = 1000


class WorkerProcess:
    """Owns some shards and answers the coordinator's requests about them.

    One thread owns the socket; methods run in thread pools, one a lane, and hand their replies back to it. Stops on
    SIGTERM, SIGINT, or when its parent is gone; shards are closed (flushed) before it returns.
    """

    def __init__(
        self, name: str, shard_numbers: Sequence[int], settings: Settings, address: str, cluster_id: str, parent: int
    ):
        self._name = name
        self._settings = settings
        self._cluster_id = cluster_id
        self._parent = parent
        self._symbols = TextTable()
        self._states: dict[int, Shard | str | None] = dict.fromkeys(shard_numbers)  # None: loading, str: why it failed
        self._methods = all_methods()
        self._lanes = {lane: ThreadPoolExecutor(n, thread_name_prefix=lane) for lane, n in LANE_THREADS.items()}
        self._waiting: dict[Lane, int] = dict.fromkeys(LANE_THREADS, 0)
        self._running: dict[bytes, Request] = {}
        self._replies: deque[tuple[bytes, list[wire.Frame]]] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = False
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.ROUTING_ID, f"{name}:{os.getpid()}:{time.time_ns()}".encode())
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        # Nothing is queued for a coordinator that is away: old beats and replies are of no use to the next one.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.connect(address)

    def run(self) -> None:
        """Serve until told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        loading = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="load")
        for shard in self._states:
            loading.submit(self._load, shard)
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_read, zmq.POLLIN)
        beat_at = 0.0
        while not self._stopping:
            now = time.monotonic()
            if now >= beat_at:
                self._beat()
                beat_at = now + HEARTBEAT_S
                if os.getppid() != self._parent:
                    event(logging.WARNING, "parent is gone, stopping", worker=self._name)
                    break
            ready = dict(poller.poll(max(1, int((beat_at - now) * 1000))))
            if self._wake_read in ready:
                os.read(self._wake_read, 65536)
            if self._socket in ready:
                self._receive()
            self._send_replies()
        self._close(loading)

    def _stop(self, *_: Any) -> None:
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_write, b"x")

    def _load(self, number: int) -> None:
        try:
            self._states[number] = Shard(number, self._settings, self._symbols)
        except Exception as error:
            # Whatever went wrong in one shard, the others serve on, and the reason is shown wherever it is missed.
            self._states[number] = str(error) or type(error).__name__
            event(logging.ERROR, "shard failed to load", trace=True, shard=number)
        self._wake()

    def _beat(self) -> None:
        message = cluster_pb2.Register(pid=os.getpid(), worker=self._name, cluster_id=self._cluster_id)
        for number, state in self._states.items():
            entry = message.shards.add(shard=number)
            if isinstance(state, Shard):
                if state.store.recoverable():
                    event(logging.WARNING, "a failed store can be opened again, restarting", shard=number)
                    self._stopping = True
                entry.state = cluster_pb2.ShardState.READY
                for key, count in state.counts().items():
                    entry.counts[key] = count
            elif state is None:
                entry.state = cluster_pb2.ShardState.LOADING
            else:
                entry.state, entry.detail = cluster_pb2.ShardState.FAILED, state
        self._send(wire.encode_register(message))

    def _receive(self) -> None:
        while True:
            try:
                frames = [frame.buffer for frame in self._socket.recv_multipart(zmq.NOBLOCK, copy=False)]
            except zmq.Again:
                return
            if wire.kind_of(frames) == wire.CANCEL:
                running = self._running.get(wire.request_id_of(frames))
                if running is not None:
                    running.cancelled = True
                continue
            request_id, request = wire.decode_request(frames)
            self._dispatch(request_id, request)

    def _dispatch(self, request_id: bytes, request: Request) -> None:
        method = self._methods.get(request.method)
        if method is None:
            self._reply(request_id, _failure(NotFound(f"worker method {request.method!r} does not exist")))
        elif self._waiting[method.lane] >= LANE_QUEUE_MAX:
            text = f"{self._name} has {LANE_QUEUE_MAX} requests waiting in its {method.lane} lane"
            self._reply(request_id, _failure(Overloaded(text)))
        else:
            self._waiting[method.lane] += 1
            self._running[request_id] = request
            self._lanes[method.lane].submit(self._run, request_id, request, method)

    def _run(self, request_id: bytes, request: Request, method: Method) -> None:
        started = time.perf_counter()
        try:
            reply = self._answer(request, method)
        except TriptychError as error:
            reply = _failure(error)
        except Exception:
            event(logging.ERROR, "request failed", trace=True, method=request.method)
            reply = _failure(Internal(f"{request.method} failed in {self._name}; its log has the reason"))
        reply.timings_ms = {**reply.timings_ms, "total": (time.perf_counter() - started) * 1000}
        self._reply(request_id, reply)

    def _answer(self, request: Request, method: Method) -> Reply:
        if request.time_left == 0:
            raise DeadlineExceeded(f"{request.method} waited past its deadline in {self._name}")
        ready: dict[int, Shard] = {}
        missing: dict[int, str] = {}
        for number in request.shards:
            state = self._states.get(number, f"{self._name} does not own it")
            if isinstance(state, Shard):
                ready[number] = state
            else:
                missing[number] = "still loading" if state is None else state
        if not ready:
            return Reply(shard_errors=missing)
        reply = method.run(ready, request)
        if missing:
            reply.shard_errors = {**missing, **reply.shard_errors}
        return reply

    def _reply(self, request_id: bytes, reply: Reply) -> None:
        self._replies.append((request_id, wire.encode_reply(request_id, reply)))
        self._wake()

    def _send_replies(self) -> None:
        while self._replies:
            request_id, frames = self._replies.popleft()
            request = self._running.pop(request_id, None)
            if request is not None:
                method = self._methods[request.method]
                self._waiting[method.lane] -= 1
            self._send(frames)

    def _send(self, frames: Sequence[wire.Frame]) -> None:
        try:
            wire.send(self._socket, frames)
        except zmq.Again:
            # The coordinator is away; whoever waited for this has been told so by its own deadline.
            event(logging.DEBUG, "message dropped, coordinator is away", worker=self._name)

    def _close(self, loading: ThreadPoolExecutor) -> None:
        loading.shutdown(wait=True, cancel_futures=True)
        for request in list(self._running.values()):
            request.cancelled = True
        for lane in self._lanes.values():
            lane.shutdown(wait=True, cancel_futures=True)
        self._send_replies()
        closing = []
        for state in self._states.values():
            if isinstance(state, Shard):
                closing.append(threading.Thread(target=state.close))
                closing[-1].start()
        for thread in closing:
            thread.join()
        self._socket.close()
        event(logging.INFO, "worker stopped", worker=self._name)


def _failure(error: TriptychError) -> Reply:
    return Reply(error_class=type(error).__name__, error=str(error))
