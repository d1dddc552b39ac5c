"""A worker's socket and the threads that serve it.

Every thread does the same: it waits for a request, runs it, sends the reply and waits again. The kernel wakes one of
those that wait, and there are more of them than requests may run at once, so that one is always there to hear the
next message, however long the others' methods take. Handing requests from a thread that hears to threads that work,
and replies back, would cost two more wake-ups a request, each as long as what a small request needs otherwise.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import zmq

from shared import wire
from shared.errors import NotFound, Overloaded, TriptychError
from shared.telemetry import event
from shared.wire import Reply, Request
from worker.methods.method import Lane, Method

LANE_THREADS: dict[Lane, int] = {"write": 4, "read": 4, "query": 2}
"""Methods of a lane that run at once."""
LANE_QUEUE_MAX = 1024
"""Requests waiting in one lane; the coordinator's own bound is lower, so this only stops a runaway."""
THREADS = sum(LANE_THREADS.values()) + 1


@dataclass(slots=True)
class _Work:
    """One request and the method it asks for."""

    id: bytes
    request: Request
    method: Method


@dataclass(slots=True)
class _Lane:
    threads: int
    running: int = 0
    waiting: deque[_Work] = field(default_factory=deque)


class Service:
    """Answers the requests that come over a socket with what `run` returns: the encoded reply to the request of an id.
    It is called in several threads at once and raises nothing. The socket is this object's from now on."""

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
        # ZeroMQ's sockets may be used by any thread, but by one at a time. All that follows is under this lock.
        self._lock = threading.Lock()
        self._lanes = {lane: _Lane(count) for lane, count in LANE_THREADS.items()}
        self._ready: deque[_Work] = deque()  # may run now, for want of a thread only
        self._accepted: dict[bytes, Request] = {}
        self._stopping = False
        # Ready once for each number written to it: there is work for one more thread.
        self._more = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._stopped = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Daemons: should the main thread fail, they must not keep a worker alive that no longer beats.
        self._threads = [threading.Thread(target=self._serve, name=f"serve-{n}", daemon=True) for n in range(THREADS)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def send(self, message: Sequence[wire.Frame]) -> bool:
        """Send a message of the worker's own; False when the coordinator is away, and then it is dropped."""
        with self._lock:
            sent = self._transmit(message)
            self._hear()
            self._share()
            return sent

    def close(self) -> None:
        """Answer what runs, drop what waits, and close the socket."""
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
        self._socket.close()

    def _serve(self) -> None:
        try:
            self._serve_all()
        except Exception:
            # Without this thread a lane would be short of one for ever: the worker stops and is started anew.
            event(logging.ERROR, "a serving thread failed, stopping", trace=True, worker=self._name)
            os.kill(os.getpid(), signal.SIGTERM)

    def _serve_all(self) -> None:
        wake = select.epoll()
        # Of the threads that wait, the kernel wakes one, not all.
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
        """Send the reply to the work that is done; the next request for this thread, if there is one."""
        with self._lock:
            if done is not None:
                self._finish(*done)
            self._hear()
            work = self._ready.popleft() if self._ready else None
            self._share()
            return work

    def _finish(self, work: _Work, message: Sequence[wire.Frame]) -> None:
        self._accepted.pop(work.id, None)
        self._transmit(message)
        lane = self._lanes[work.method.lane]
        if lane.waiting:
            self._ready.append(lane.waiting.popleft())
        else:
            lane.running -= 1

    def _hear(self) -> None:
        """Take in all messages that have come. Only then the socket's descriptor tells of the next one."""
        while wire.readable(self._socket):
            self._accept(wire.receive(self._socket))

    def _share(self) -> None:
        """Have another thread woken if there is work for it, which wakes one more if there still is."""
        if self._ready:
            os.eventfd_write(self._more, 1)

    def _accept(self, message: Sequence[wire.Frame]) -> None:
        if wire.kind_of(message) == wire.CANCEL:
            cancelled = self._accepted.get(wire.request_id_of(message))
            if cancelled is not None:
                cancelled.cancelled = True
            return
        request_id, request = wire.decode_request(message)
        method = self._methods.get(request.method)
        if method is None:
            self._refuse(request_id, NotFound(f"worker method {request.method!r} does not exist"))
            return
        lane = self._lanes[method.lane]
        if len(lane.waiting) >= LANE_QUEUE_MAX:
            text = f"{self._name} has {LANE_QUEUE_MAX} requests waiting in its {method.lane} lane"
            self._refuse(request_id, Overloaded(text))
            return
        self._accepted[request_id] = request
        work = _Work(request_id, request, method)
        if lane.running < lane.threads:
            lane.running += 1
            self._ready.append(work)
        else:
            lane.waiting.append(work)

    def _refuse(self, request_id: bytes, error: TriptychError) -> None:
        self._transmit(wire.encode_reply(request_id, failure(error)))

    def _transmit(self, message: Sequence[wire.Frame]) -> bool:
        try:
            wire.send(self._socket, message)
        except zmq.Again:
            # The coordinator is away; whoever waited for this has been told so by its own deadline.
            event(logging.DEBUG, "message dropped, coordinator is away", worker=self._name)
            return False
        return True


def failure(error: TriptychError) -> Reply:
    return Reply(error_class=type(error).__name__, error=str(error))
