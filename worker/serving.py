"""A worker's socket and the threads that serve it.

All threads do the same: each waits for a request, runs it, sends the reply and waits again. The kernel wakes one of the
waiting threads. There are more threads than requests may run at once, so one thread is always free to receive the next
message, however long the methods in the other threads take. A separate receiving thread would need two more wake-ups
per request, to hand over the request and the reply. Each takes as long as the rest of a small request.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import zmq

from shared import wire
from shared.errors import DeadlineExceeded, NotFound, Overloaded, TriptychError
from shared.measurements import Latencies, Values
from shared.telemetry import event
from shared.wire import Reply, Request
from worker.methods.method import Lane, Method

LANE_THREADS: dict[Lane, int] = {"write": 4, "read": 4, "light": 2, "heavy": 2, "debug": 1}
"""How many methods of each lane may run at once."""
LANE_QUEUE_MAX = 1024
"""Requests that may wait in one lane. The coordinator's own bound is lower, so a correct one never reaches this."""
CANCELLED_EARLY_MAX = 1024
"""Cancelled requests that are remembered in case they arrive after their cancellation."""
THREADS = sum(LANE_THREADS.values()) + 1


@dataclass(slots=True)
class _Work:
    """One request and its method."""

    id: bytes
    request: Request
    method: Method
    lane: Lane
    came_at: float
    began_at: float = 0.0


@dataclass(slots=True)
class _Lane:
    threads: int
    running: int = 0
    waiting: deque[_Work] = field(default_factory=deque)
    waits: Latencies = field(default_factory=Latencies)
    runs: Latencies = field(default_factory=Latencies)


@dataclass(slots=True)
class _Served:
    """Requests of one method that were answered."""

    requests: int = 0
    seconds: float = 0.0


class Service:
    """Receives requests on a socket and sends the replies. `run` (request id, request, method) returns the encoded
    reply; it is called in several threads at once and must not raise. The service owns the socket."""

    def __init__(
        self,
        name: str,
        socket: zmq.Socket[bytes],
        methods: Mapping[str, Method],
        run: Callable[[bytes, Request, Method], list[wire.Frame]],
    ) -> None:
        self._name = name
        self._socket = socket
        self._methods = methods
        self._run = run
        # ZeroMQ's sockets may be used by any thread, but by one at a time. The lock guards the socket and what follows.
        self._lock = threading.Lock()
        self._lanes = {lane: _Lane(count) for lane, count in LANE_THREADS.items()}
        self._ready: deque[_Work] = deque()  # within the limit of their lane, waiting only for a thread
        self._accepted: dict[bytes, Request] = {}
        self._served = {method: _Served() for method in methods}
        self._cancelled_early: dict[bytes, bool] = {}
        self._stopping = False
        # A semaphore: each number written to it wakes one more thread, for which there is work.
        self._more = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._stopped = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Daemons: if the main thread fails, they must not keep a worker alive that sends no heartbeats.
        self._threads = [threading.Thread(target=self._serve, name=f"serve-{n}", daemon=True) for n in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def send(self, message: Sequence[wire.Frame]) -> bool:
        """Send a message that is no reply. Returns False, and drops the message, when the coordinator is away."""
        with self._lock:
            sent = self._transmit(message)
            self._hear()
            self._share()
            return sent

    def is_connected(self) -> bool:
        """Whether the coordinator is there, and takes messages."""
        with self._lock:
            can_send = wire.writable(self._socket)
            self._hear()
            self._share()
            return can_send

    def progress(self) -> list[tuple[bytes, int]]:
        """(Request id, samples read) of the queries that have read any and are not answered."""
        with self._lock:
            return [(name, request.samples_read) for name, request in self._accepted.items() if request.samples_read]

    def cancel(self, request_id: bytes) -> None:
        """The reply to this request is no longer awaited, whether it has arrived here or not."""
        with self._lock:
            self._cancel(request_id)

    def measure(self, values: Values, worker: str) -> None:
        """Add what the metrics say about the requests of this process."""
        with self._lock:
            for name, lane in self._lanes.items():
                oldest_s = time.perf_counter() - lane.waiting[0].came_at if lane.waiting else 0.0
                values.put("triptych_worker_lane_running", lane.running, worker, name)
                values.put("triptych_worker_lane_waiting", len(lane.waiting), worker, name)
                values.put("triptych_worker_lane_oldest_seconds", oldest_s, worker, name)
                values.put("triptych_worker_lane_wait_seconds", lane.waits, worker, name)
                values.put("triptych_worker_lane_duration_seconds", lane.runs, worker, name)
            for method, served in self._served.items():
                if served.requests:
                    values.put("triptych_worker_requests_total", served.requests, worker, method)
                    values.put("triptych_worker_request_seconds_total", served.seconds, worker, method)

    def close(self) -> None:
        """Let running requests finish, drop waiting ones, tell the coordinator, and close the socket."""
        with self._lock:
            self._stopping = True
            for request in self._accepted.values():
                request.cancelled = True
            self._ready.clear()
            for lane in self._lanes.values():
                lane.waiting.clear()
        os.eventfd_write(self._stopped, 1)
        for thread in self._threads:
            thread.join()
        # Those that it has sent meanwhile, and that have no reply, fail there at once.
        self._transmit(wire.encode_goodbye())
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._serve_all()
        except Exception:
            # A lane would have one thread less for good. So the worker stops, and the supervisor restarts it.
            event(logging.ERROR, "a serving thread failed, stopping", trace=True, worker=self._name)
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve_all(self) -> None:
        wake = select.epoll()
        # With EPOLLEXCLUSIVE, the kernel wakes one of the waiting threads, not all.
        wake.register(self._socket.fileno(), select.EPOLLIN | select.EPOLLEXCLUSIVE)
        wake.register(self._more, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        wake.register(self._stopped, select.EPOLLIN)
        with wake:
            work = None
            while not self._stopping:
                if work is not None:
                    work = self._next((work, self._run(work.id, work.request, work.method)))
                    continue
                if any(descriptor == self._more for descriptor, _ in wake.poll()):
                    with contextlib.suppress(BlockingIOError):  # another thread was faster
                        os.eventfd_read(self._more)
                work = self._next()

    def _next(self, done: tuple[_Work, Sequence[wire.Frame]] | None = None) -> _Work | None:
        """Send the reply of finished work, if any. Returns the next request for this thread, if there is one."""
        with self._lock:
            if done is not None:
                self._finish(*done)
            self._hear()
            work = self._ready.popleft() if self._ready else None
            self._share()
            if work is not None:
                work.began_at = time.perf_counter()
                self._lanes[work.lane].waits.add(work.began_at - work.came_at)
            return work

    def _finish(self, work: _Work, message: Sequence[wire.Frame]) -> None:
        self._accepted.pop(work.id, None)
        self._transmit(message)
        lane = self._lanes[work.lane]
        took_s = time.perf_counter() - work.began_at
        lane.runs.add(took_s)
        served = self._served[work.request.method]
        served.requests += 1
        served.seconds += took_s
        if lane.waiting:
            self._ready.append(lane.waiting.popleft())
        else:
            lane.running -= 1

    def _hear(self) -> None:
        """Receive all messages that have arrived: only then does the socket's descriptor signal the next one."""
        while wire.readable(self._socket):
            self._accept(wire.receive(self._socket))

    def _share(self) -> None:
        """Wake another thread if there is work for it. That thread wakes one more if there is still work."""
        if self._ready:
            os.eventfd_write(self._more, 1)

    def _accept(self, message: Sequence[wire.Frame]) -> None:
        if wire.kind_of(message) == wire.CANCEL:
            self._cancel(wire.request_id_of(message))
            return
        request_id, request = wire.decode_request(message)
        if self._cancelled_early.pop(request_id, False):
            # Nobody waits for the answer. But a write that is not answered counts as one that may still bring series.
            text = f"{request.method} was cancelled before it came to {self._name}"
            self._refuse(request_id, DeadlineExceeded(text))
            return
        method = self._methods.get(request.method)
        if method is None:
            self._refuse(request_id, NotFound(f"worker method {request.method!r} does not exist"))
            return
        name = method.lane(request)
        lane = self._lanes[name]
        if len(lane.waiting) >= LANE_QUEUE_MAX:
            text = f"{self._name} has {LANE_QUEUE_MAX} requests waiting in its {name} lane"
            self._refuse(request_id, Overloaded(text))
            return
        self._accepted[request_id] = request
        work = _Work(request_id, request, method, name, time.perf_counter())
        if lane.running < lane.threads:
            lane.running += 1
            self._ready.append(work)
        else:
            lane.waiting.append(work)

    def _cancel(self, request_id: bytes) -> None:
        request = self._accepted.get(request_id)
        if request is not None:
            request.cancelled = True
            return
        # The request has been answered, or is still behind others on its own connection.
        self._cancelled_early[request_id] = True
        if len(self._cancelled_early) > CANCELLED_EARLY_MAX:
            self._cancelled_early.pop(next(iter(self._cancelled_early)))

    def _refuse(self, request_id: bytes, error: TriptychError) -> None:
        self._transmit(wire.encode_reply(request_id, failure(error)))

    def _transmit(self, message: Sequence[wire.Frame]) -> bool:
        try:
            wire.send(self._socket, message)
        except zmq.Again:
            # The coordinator is away. A request that it still awaits fails at its deadline there.
            event(logging.DEBUG, "message dropped, coordinator is away", worker=self._name)
            return False
        return True


def failure(error: TriptychError) -> Reply:
    return Reply(error_class=type(error).__name__, error=str(error))
