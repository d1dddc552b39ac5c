"""A worker process: loads its shards, runs requested methods, and sends heartbeats."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zmq

from proto import cluster_pb2
from shared import identity, tracing, wire
from shared.errors import ConfigError, DeadlineExceeded, Internal, TriptychError, Unavailable
from shared.manifest import shard_control
from shared.measurements import Measurements, Values
from shared.process.allocator import Trimmer
from shared.settings import Settings
from shared.telemetry import event
from shared.wire import Reply, Request
from worker import damage
from worker.measuring import WorkerMeasurements
from worker.methods.method import Method, begin
from worker.methods.table import METHODS
from worker.services import Services
from worker.serving import Service, failure
from worker.shard import Shard
from worker.storage.local import local_journal
from worker.storage.rows.damage import StoreDamaged
from worker.storage.wal import layout

HEARTBEAT_S = 0.5
AWAY_S = 0.01
"""Seconds between two checks whether the coordinator is back. ZeroMQ reconnects after one to two times as long. Both
delay a start, since the workers are ready before the coordinator."""
LOADING_THREADS = 2
RETRY_FIRST_S, RETRY_MAX_S = 0.5, 30.0
"""Seconds until the worker loads a shard again whose disk failed. The pause doubles each time."""
LINGER_MS = 1000


class WorkerProcess:
    """Owns some shards and answers the coordinator's requests about them.

    The main thread sends heartbeats; a `Service` receives and answers requests. The process stops on SIGTERM or SIGINT,
    when its parent has ended, or to reopen a failed store or log. It closes the shards before it returns.
    """

    def __init__(
        self, name: str, shard_numbers: Sequence[int], settings: Settings, address: str, cluster_id: str, parent: int
    ):
        self._name = name
        self._settings = settings
        self._cluster_id = cluster_id
        self._parent = parent
        self._wal = local_journal(settings.data, min(shard_numbers))
        self._services = Services.build(settings, self._wal)
        self._states: dict[int, Shard | str | None] = dict.fromkeys(shard_numbers)  # None: loading, str: why it failed
        self._after_s: dict[int, float] = {}  # of shards whose disk failed: the last pause; `_retry_at`: its end
        self._retry_at: dict[int, float] = {}
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._stopping = False
        self._claiming = threading.Lock()
        routing_id = f"{name}:{os.getpid()}:{time.time_ns()}".encode()
        self._control = _connected(wire.control_address(address), routing_id)
        socket = _connected(address, routing_id)
        self._measurements = WorkerMeasurements(name, self._services)
        self._service = Service(name, socket, METHODS, self._run)

    def run(self) -> None:
        """Serve until told to stop."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        tracing.start(self._settings.traces, self._name)
        loading = ThreadPoolExecutor(LOADING_THREADS, thread_name_prefix="load")
        for shard in self._states:
            loading.submit(self._load, shard)
        self._service.start()
        trimmer = Trimmer()
        wake = select.poll()
        wake.register(self._wake_read, select.POLLIN)
        wake.register(self._control.fileno(), select.POLLIN)
        while not self._stopping:
            is_connected = self._service.is_connected() and self._beat()
            if trimmer.due():
                trimmer.run()
            for shard in self._due():
                loading.submit(self._load, shard)
            if os.getppid() != self._parent:
                event(logging.WARNING, "parent is gone, stopping", worker=self._name)
                break
            self._sleep(wake, HEARTBEAT_S if is_connected else AWAY_S)
        self._close(loading)

    def _sleep(self, wake: select.poll, seconds: float) -> None:
        """Sleep until the state of a shard changes or the time is up. Control messages are handled meanwhile."""
        until = time.monotonic() + seconds
        while not self._stopping:
            while wire.readable(self._control):
                message = wire.receive(self._control)
                if wire.kind_of(message) == wire.CANCEL:
                    self._service.cancel(wire.request_id_of(message))
                elif wire.kind_of(message) == wire.PAUSE:
                    self._services.background.pause()
                elif wire.kind_of(message) == wire.MEASURE:
                    self._send_measurements()
            ready = [descriptor for descriptor, _ in wake.poll(max(0.0, until - time.monotonic()) * 1000)]
            if self._wake_read in ready:
                os.read(self._wake_read, 65536)
                return
            if not ready:
                return

    def _send_measurements(self) -> None:
        values = Values()
        ready = {number: shard for number in self._states if isinstance(shard := self._state(number), Shard)}
        try:
            self._service.measure(values, self._name)
            self._measurements.put(values, ready)
        except Exception:
            # Heartbeats and requests must go on; the coordinator reports that the measurements are old.
            event(logging.ERROR, "measurements failed", trace=True, worker=self._name)
            return
        with contextlib.suppress(zmq.Again):  # the coordinator is away
            wire.send(self._control, wire.encode_measurements(Measurements(values.by_name)))

    def _stop(self, *_: Any) -> None:
        self._stopping = True
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full of wake-ups already
            os.write(self._wake_write, b"x")

    def _load(self, number: int) -> None:
        try:
            self._states[number] = Shard(number, self._services)
            self._claim(number)
        except StoreDamaged as error:
            self._states[number] = str(error)
            event(logging.ERROR, "shard refused", shard=number, reason=str(error))
        except (OSError, Unavailable) as error:
            # The disk may recover, and only this worker can retry.
            after_s = min(2 * self._after_s.get(number, RETRY_FIRST_S / 2), RETRY_MAX_S)
            self._after_s[number], self._retry_at[number] = after_s, time.monotonic() + after_s
            self._states[number] = f"{error}; it is tried again"
            event(logging.ERROR, "shard could not be loaded", shard=number, reason=str(error), again_in_s=after_s)
        except Exception as error:
            # Whatever fails in one shard, the others still serve, and answers that lack this shard give the reason.
            self._states[number] = str(error) or type(error).__name__
            event(logging.ERROR, "shard failed to load", trace=True, shard=number)
        self._wake()  # so that a heartbeat reports the new state at once

    def _claim(self, number: int) -> None:
        """Write identity files to the directories of the shard and of the log, which are now in use. Without these
        files, the later loss or exchange of a directory may go unnoticed."""
        control, log = self._services.storage.control, min(self._states)
        try:
            with self._claiming:
                identity.claim({number: shard_control(control, number)}, self._cluster_id, identity.SHARD)
                identity.claim({log: layout.control_of(control, log)}, self._cluster_id, identity.LOG)
        except (OSError, ConfigError) as error:
            event(logging.WARNING, "identity not written", shard=number, reason=str(error))

    def _due(self) -> list[int]:
        """The shards to load again now."""
        now = time.monotonic()
        due = [number for number, at in list(self._retry_at.items()) if at <= now]
        for number in due:
            del self._retry_at[number]
        return due

    def _beat(self) -> bool:
        """Send the states of the shards to the coordinator. Returns whether both connections reach it."""
        if self._wal.recoverable():
            event(logging.WARNING, "the failed write-ahead log can be opened again, restarting", worker=self._name)
            self._stopping = True
        message = cluster_pb2.Register(pid=os.getpid(), worker=self._name, cluster_id=self._cluster_id)
        for number in self._states:
            state = self._state(number)
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
        for call, samples in self._service.progress():
            message.progress.add(call=call, samples=samples)
        beat = wire.encode_register(message)
        is_sent = self._service.send(beat)
        try:
            wire.send(self._control, beat)
        except zmq.Again:  # the coordinator is away, or this connection is not ready yet
            return False
        return is_sent

    def _run(self, request_id: bytes, request: Request, method: Method) -> list[wire.Frame]:
        started = time.perf_counter()
        begin(request)
        try:
            if request.trace_parent and tracing.is_on():
                reply = self._traced(request, method)
            else:
                reply = self._answer(request, method)
            reply.timings_ms = {**reply.timings_ms, "total": (time.perf_counter() - started) * 1000}
            return wire.encode_reply(request_id, reply)
        except TriptychError as error:
            reply = failure(error)
        except Exception:
            event(logging.ERROR, "request failed", trace=True, method=request.method)
            reply = failure(Internal(f"{request.method} failed in {self._name}; its log has the reason"))
        return wire.encode_reply(request_id, reply)

    def _traced(self, request: Request, method: Method) -> Reply:
        attributes: tracing.Attributes = {"triptych.shards": len(request.shards)}
        with tracing.span(request.method, request.trace_parent, attributes):
            return self._answer(request, method)

    def _state(self, number: int) -> Shard | str | None:
        """The shard if it is ready, None while it loads, otherwise the reason why it is missing."""
        state = self._states.get(number, f"{self._name} does not own it")
        return state.store.damage or state if isinstance(state, Shard) else state

    def _answer(self, request: Request, method: Method) -> Reply:
        if request.time_left == 0:
            raise DeadlineExceeded(f"{request.method} waited past its deadline in {self._name}")
        while True:
            ready: dict[int, Shard] = {}
            missing: dict[int, str] = {}
            for number in request.shards:
                state = self._state(number)
                if isinstance(state, Shard):
                    ready[number] = state
                else:
                    missing[number] = "still loading" if state is None else state
            if not ready:
                return Reply(shard_errors=missing)
            try:
                reply = method.run(ready, request)
                break
            except StoreDamaged as error:
                # A read is retried without the damaged shard. A write is never started twice.
                if method.kind == "write" or all(shard.store.damage is None for shard in ready.values()):
                    raise Unavailable(str(error)) from error
        damage_warnings = damage.warnings({number: shard.damage for number, shard in ready.items()}, request.method)
        if damage_warnings:
            reply.warnings = [*reply.warnings, *damage_warnings]
        if missing:
            reply.shard_errors = {**missing, **reply.shard_errors}
        return reply

    def _close(self, loading: ThreadPoolExecutor) -> None:
        loading.shutdown(wait=True, cancel_futures=True)
        self._service.close()
        self._control.close()
        threads = []
        for state in self._states.values():
            if isinstance(state, Shard):
                threads.append(threading.Thread(target=state.close))
                threads[-1].start()
        for thread in threads:
            thread.join()
        self._wal.close()
        tracing.stop()
        event(logging.INFO, "worker stopped", worker=self._name)


def _connected(address: str, routing_id: bytes) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.ROUTING_ID, routing_id)
    socket.setsockopt(zmq.LINGER, LINGER_MS)
    socket.setsockopt(zmq.RECONNECT_IVL, int(AWAY_S * 1000))
    # Queue nothing while the coordinator is away: old heartbeats and replies are of no use to the next one.
    socket.setsockopt(zmq.IMMEDIATE, 1)
    socket.connect(address)
    return socket
