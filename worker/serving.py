"""A worker's socket and the threads that serve it.

All threads do the same: each waits for a request, runs it, sends the reply and waits again. The kernel wakes one of the
waiting threads. There are more threads than requests may run at once, so one thread is always free to receive the next
message, however long the methods in the other threads take. A separate receiving thread would need two more wake-ups
per request, to hand over the request and the reply. Each wake-up takes as long as all other work of a small request.
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
"""Requests that may wait in one lane. The coordinator's own limit is lower, so a correct coordinator never reaches
this."""
CANCELLED_EARLY_MAX = 1024
"""Cancellations that are remembered because their request may arrive later."""
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
    """The answered requests of one method."""

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
        # Any thread may use a ZeroMQ socket, but only one at a time. The lock guards the socket and the fields below.
        self._lock = threading.Lock()
        self._lanes = {lane: _Lane(count) for lane, count in LANE_THREADS.items()}
        self._ready: deque[_Work] = deque()  # within the limit of their lane, waiting only for a thread
        self._accepted: dict[bytes, Request] = {}
        self._served = {method: _Served() for method in methods}
        self._cancelled_early: dict[bytes, bool] = {}
        self._stopping = False
        # A semaphore: each unit written to it wakes one more thread, for which there is work.
        self._more = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._stopped = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Daemons: if the main thread fails, they must not keep alive a worker that sends no heartbeats.
        self._threads = [threading.Thread(target=self._serve, name=f"serve-{n}", daemon=True) for n in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def send(self, message: Sequence[wire.Frame]) -> bool:
        """Send a message that is not a reply. Returns False, and drops the message, if the coordinator is away."""
        with self._lock:
            is_sent = self._transmit(message)
            self._receive_all()
            self._wake_another()
            return is_sent

    def is_connected(self) -> bool:
        """Whether the coordinator is connected and accepts messages."""
        with self._lock:
            can_send = wire.writable(self._socket)
            self._receive_all()
            self._wake_another()
            return can_send

    def progress(self) -> list[tuple[bytes, int]]:
        """(request id, samples read) of the unanswered queries that have read any samples."""
        with self._lock:
            reads = ((request_id, request.samples_read) for request_id, request in self._accepted.items())
            return [(request_id, samples) for request_id, samples in reads if samples]

    def cancel(self, request_id: bytes) -> None:
        """Cancel this request: nobody waits for its reply any more. It may not have arrived here yet."""
        with self._lock:
            self._cancel(request_id)

    def measure(self, values: Values, worker: str) -> None:
        """Add the metrics of this process's requests."""
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
        """Let running requests finish, drop waiting ones, say goodbye to the coordinator, and close the socket."""
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
        # Requests that the coordinator has sent meanwhile, and that have no reply, then fail there at once.
        self._transmit(wire.encode_goodbye())
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._serve_all()
        except Exception:
            # Otherwise a lane would permanently have one thread less. The supervisor restarts the worker.
            event(logging.ERROR, "a serving thread failed, stopping", trace=True, worker=self._name)
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve_all(self) -> None:
        wake = select.epoll()
        # With EPOLLEXCLUSIVE, the kernel wakes one of the waiting threads instead of all.
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
            self._receive_all()
            work = self._ready.popleft() if self._ready else None
            self._wake_another()
            if work is not None:
                work.began_at = time.perf_counter()
                self._lanes[work.lane].waits.add(work.began_at - work.came_at)
            return work

    def _finish(self, work: _Work, message: Sequence[wire.Frame]) -> None:
        self._accepted.pop(work.id, None)
        self._transmit(message)
        lane = self._lanes[work.lane]
        duration_s = time.perf_counter() - work.began_at
        lane.runs.add(duration_s)
        served = self._served[work.request.method]
        served.requests += 1
        served.seconds += duration_s
        if lane.waiting:
            self._ready.append(lane.waiting.popleft())
        else:
            lane.running -= 1

    def _receive_all(self) -> None:
        """Receive all messages that have arrived: only then does the socket's descriptor signal the next one."""
        while wire.readable(self._socket):
            self._accept(wire.receive(self._socket))

    def _wake_another(self) -> None:
        """Wake another thread if there is work for it. That thread wakes one more if work remains."""
        if self._ready:
            os.eventfd_write(self._more, 1)

    def _accept(self, message: Sequence[wire.Frame]) -> None:
        if wire.kind_of(message) == wire.CANCEL:
            self._cancel(wire.request_id_of(message))
            return
        request_id, request = wire.decode_request(message)
        if self._cancelled_early.pop(request_id, False):
            # Nobody waits for the reply, but a write without a reply counts as one that may still bring new series.
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
        # The request has been answered, or is still queued behind others on its own connection.
        self._cancelled_early[request_id] = True
        if len(self._cancelled_early) > CANCELLED_EARLY_MAX:
            self._cancelled_early.pop(next(iter(self._cancelled_early)))

    def _refuse(self, request_id: bytes, error: TriptychError) -> None:
        self._transmit(wire.encode_reply(request_id, failure(error)))

    def _transmit(self, message: Sequence[wire.Frame]) -> bool:
        try:
            wire.send(self._socket, message)
        except zmq.Again:
            # The coordinator is away. If it still waits for the reply, the request fails there at its deadline.
            event(logging.DEBUG, "message dropped, coordinator is away", worker=self._name)
            return False
        return True


def failure(error: TriptychError) -> Reply:
    return Reply(error_class=type(error).__name__, error=str(error))
