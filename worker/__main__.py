"""The supervisor, `python -m worker`: starts the worker processes, restarts one that dies, passes signals on."""

from __future__ import annotations

import gc
import signal

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; `interpreter.collect_seldom` ends this
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # ends a start as SIGTERM does, without a traceback

import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.context import ForkProcess
from typing import Any

from shared import (
    allocator,
    config,
    confinement,
    environment,
    interpreter,
    listen_address,
    manifest,
    no_arguments,
    open_files,
    supervision,
    telemetry,
    tracing,
    warming,
)
from shared.control import Lease, LocalControl
from shared.durable import FILE_UMASK
from shared.errors import ConfigError, Unavailable
from shared.messages.settling import settle
from shared.telemetry import event
from worker import warm
from worker.process import WorkerProcess
from worker.storage.wal import layout

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0
HEALTHY_AFTER_S = 30.0
"""A worker that lived this long is healthy: its next death is met with the first back-off again."""
STOP_GRACE_S = 4.0
"""Within honcho's own 5 s before it kills."""

# Forked children share the imported libraries and compiled kernels: a restarted worker is there in milliseconds.
_fork = multiprocessing.get_context("fork")


@dataclass
class _Child:
    name: str
    shards: tuple[int, ...]
    process: ForkProcess | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    backoff_s: float = field(default=BACKOFF_FIRST_S)
    exits: supervision.Exits = field(default_factory=supervision.Exits)


class Supervisor:
    """Keeps one process a worker running until told to stop, and one that compiles the kernels that the cache lacks."""

    def __init__(
        self,
        settings: config.Settings,
        identity: manifest.Manifest,
        address: str,
        lock: Lease,
        lacks_kernels: bool = False,
    ) -> None:
        self._lacks_kernels = lacks_kernels
        self._lock = lock
        self._pid = os.getpid()
        self._settings = settings
        self._identity = identity
        self._address = address
        count = settings.worker_count()
        self._children = [_Child(f"worker-{n}", tuple(range(n, settings.shard_count(), count))) for n in range(count)]
        exits = {child.name: child.exits for child in self._children}
        self._told = supervision.Supervision(time.time(), exits, os.getpid())
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        filling = _fork.Process(target=self._become_warmer, name="kernels", daemon=True)
        self._tell()
        while not self._stopping:
            now = time.monotonic()
            for child in self._children:
                if child.process is None and now >= child.start_at:
                    self._start(child)
            if self._lacks_kernels and filling.pid is None:
                filling.start()
            self._wait()
            for child in self._children:
                if child.process is not None and not child.process.is_alive():
                    self._bury(child)
        if filling.pid is not None:
            filling.kill()
        self._stop_children()
        with contextlib.suppress(OSError):
            supervision.remove(self._settings.data)

    def _tell(self) -> None:
        """Let the coordinator know of the exits."""
        try:
            supervision.write(self._settings.data, self._told)
        except OSError as error:  # such as a full disk, which must not stop the workers
            event(logging.WARNING, "the exits of workers cannot be shown in the metrics", why=error)

    def _stop(self, *_: Any) -> None:
        self._stopping = True
        os.write(self._wake_write, b"x")

    def _start(self, child: _Child) -> None:
        child.process = _fork.Process(target=self._become_worker, args=(child,), name=child.name)
        child.process.start()
        child.started_at = time.monotonic()
        event(logging.INFO, "worker started", worker=child.name, pid=child.process.pid, shards=len(child.shards))

    def _become_warmer(self) -> None:
        self._leave()
        warming.fill_beside_requests()

    def _leave(self) -> None:
        """In a forked child: let go of what is the supervisor's."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # A child that outlives a killed supervisor must not hold the lock against the next one.
        self._lock.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)

    def _become_worker(self, child: _Child) -> None:
        self._leave()
        # A worker that wakes up interrupts nobody: else the first of those asked stops the coordinator in the middle of
        # asking the others, and they begin when it has ended.
        with contextlib.suppress(OSError):  # a container may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        WorkerProcess(
            child.name, child.shards, self._settings, self._address, self._identity.cluster_id, self._pid
        ).run()

    def _wait(self) -> None:
        """Until a child ends, a stop is asked for, or a start is due."""
        due = [child.start_at for child in self._children if child.process is None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        sentinels = [child.process.sentinel for child in self._children if child.process is not None]
        multiprocessing.connection.wait([*sentinels, self._wake_read], timeout)

    def _bury(self, child: _Child) -> None:
        process, child.process = child.process, None
        assert process is not None
        process.join()
        if self._stopping:
            return
        if time.monotonic() - child.started_at > HEALTHY_AFTER_S:
            child.backoff_s = BACKOFF_FIRST_S
        child.start_at = time.monotonic() + child.backoff_s
        reason = _exit_text(process.exitcode)
        event(
            logging.ERROR,
            "worker died, restarting",
            worker=child.name,
            pid=process.pid,
            exit=reason,
            in_s=child.backoff_s,
        )
        child.backoff_s = min(child.backoff_s * 2, BACKOFF_MAX_S)
        child.exits.count, child.exits.reason, child.exits.at = child.exits.count + 1, reason, time.time()
        self._tell()

    def _stop_children(self) -> None:
        alive = [child.process for child in self._children if child.process is not None]
        for process in alive:
            process.terminate()
        give_up = time.monotonic() + STOP_GRACE_S
        for process in alive:
            process.join(max(0.0, give_up - time.monotonic()))
            if process.is_alive():
                event(logging.ERROR, "worker did not stop in time, killed", worker=process.name, pid=process.pid)
                process.kill()
                process.join()


def _exit_text(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"code {code}"


def main() -> None:
    no_arguments.require("python -m worker", "the workers")
    os.umask(FILE_UMASK)
    try:
        settings = config.load()
        allocator.keep_pages()
        telemetry.configure(settings.log_level)
        environment.require_known_variables()
        confinement.confine(settings)
        tracing.load(settings.traces)
        open_files.raise_limit()
        control = LocalControl(settings.data)
        identity = manifest.open_manifest(settings, control, partial(listen_address.require_free, settings))
        settings = identity.settled(settings)
        open_files.warn_below(open_files.needed_by_worker(settings.shards, settings.worker_count()))
        lock = manifest.lock(control, "workers")
        address = manifest.endpoint(settings, identity)
        layout.prepare(settings.data, settings.worker_count(), identity.cluster_id)
    except (ConfigError, Unavailable) as error:
        sys.exit(f"triptych workers: {error}")
    lacks_kernels = not warm.prepare()
    settle()
    interpreter.collect_seldom()
    interpreter.switch_often()
    Supervisor(settings, identity, address, lock, lacks_kernels).run()
    manifest.leave(address, control, "coordinator")


if __name__ == "__main__":
    main()
