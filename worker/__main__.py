"""The supervisor, `python -m worker`: starts the worker processes, restarts those that die, and forwards signals."""

from __future__ import annotations

import gc
import signal

if __name__ == "__main__":
    gc.disable()  # imports leave hardly any garbage; `interpreter.collect_seldom` enables it again
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # interrupts a start as SIGTERM does, without a traceback

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
    confinement,
    environment,
    listen_address,
    manifest,
    no_arguments,
    setting_sources,
    telemetry,
    tracing,
    warming,
)
from shared.control import Lease, LocalControl
from shared.durable import FILE_UMASK
from shared.errors import ConfigError, Unavailable
from shared.messages.settling import settle
from shared.process import allocator, interpreter, open_files, supervision
from shared.settings import Settings
from shared.telemetry import event
from worker import warm
from worker.process import WorkerProcess
from worker.storage.wal import layout

BACKOFF_FIRST_S = 0.1
BACKOFF_MAX_S = 10.0
HEALTHY_AFTER_S = 30.0
"""A worker that has lived this long is healthy: after its next death, the back-off begins at BACKOFF_FIRST_S again."""
STOP_GRACE_S = 4.0
"""Less than the 5 s after which honcho kills."""

# Forked children share the imported libraries and compiled kernels, so a worker restarts within milliseconds.
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
    """Keeps one process per worker running until it is told to stop, and one process that compiles the kernels that the
    cache lacks."""

    def __init__(
        self,
        settings: Settings,
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
        self._supervision = supervision.Supervision(time.time(), exits, os.getpid())
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        warmer = _fork.Process(target=self._become_warmer, name="kernels", daemon=True)
        self._publish_exits()
        while not self._stopping:
            now = time.monotonic()
            for child in self._children:
                if child.process is None and now >= child.start_at:
                    self._start(child)
            if self._lacks_kernels and warmer.pid is None:
                warmer.start()
            self._wait()
            for child in self._children:
                if child.process is not None and not child.process.is_alive():
                    self._note_exit(child)
        if warmer.pid is not None:
            warmer.kill()
        self._stop_children()
        with contextlib.suppress(OSError):
            supervision.remove(self._settings.data)

    def _publish_exits(self) -> None:
        """Write the exits of workers to the file that the coordinator reads."""
        try:
            supervision.write(self._settings.data, self._supervision)
        except OSError as error:  # for example a full disk, which must not stop the workers
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
        self._leave_supervisor()
        warming.fill_beside_requests()

    def _leave_supervisor(self) -> None:
        """In a forked child: release what belongs to the supervisor."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        # A child that outlives a killed supervisor must not keep the lock from the next one.
        self._lock.close()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)

    def _become_worker(self, child: _Child) -> None:
        self._leave_supervisor()
        # Under this policy, a worker that wakes up preempts no other process. Otherwise the first worker to receive a
        # message preempts the coordinator, and the others get theirs only when that worker has finished.
        with contextlib.suppress(OSError):  # a container may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        WorkerProcess(
            child.name, child.shards, self._settings, self._address, self._identity.cluster_id, self._pid
        ).run()

    def _wait(self) -> None:
        """Wait until a child ends, a stop is requested, or a start is due."""
        due = [child.start_at for child in self._children if child.process is None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        sentinels = [child.process.sentinel for child in self._children if child.process is not None]
        multiprocessing.connection.wait([*sentinels, self._wake_read], timeout)

    def _note_exit(self, child: _Child) -> None:
        """Record the exit of a dead child, and schedule its restart."""
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
        self._publish_exits()

    def _stop_children(self) -> None:
        alive = [child.process for child in self._children if child.process is not None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        for process in alive:
            process.join(max(0.0, deadline - time.monotonic()))
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
        settings = setting_sources.load()
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
