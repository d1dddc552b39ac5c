"""The cluster under test: its processes can be frozen, have disk faults and lost messages, and another clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import psutil

from loadtest.harness.cluster import READY_WITHIN_S, STOP_WITHIN_S, Cluster
from tests.chaos.control import Control
from tests.zygote import Zygote

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
SETTLED_AFTER_S = 1.0
"""A damaged cluster that has had the same shards loaded for so long, none of them loading, stays so."""


@dataclass
class ChaosCluster(Cluster):
    """As Cluster; `zygote` starts its processes, `clock` is the file by which their time can be moved."""

    zygote: Zygote = field(kw_only=True)
    seed: int = 0
    clock: Path | None = None
    control: Control = field(init=False)

    def __post_init__(self) -> None:
        self.control = Control(self.directory / "control", create=True)
        self.move_clock(0)

    @property
    def data(self) -> Path:
        return self.directory / "data"

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            "CHAOS_CONTROL": str(self.directory / "control"),
            "CHAOS_DATA": str(self.data.resolve()),
            "CHAOS_SEED": str(self.seed),
        }

    def _spawn(self, module: str) -> subprocess.Popen[bytes]:
        log = self.directory / f"{module}.log"
        log.touch()
        return cast(Any, self.zygote.spawn(module, self.environment(), self.directory, log))

    def move_clock(self, seconds: int) -> None:
        """Relative to the true time, within a second. Without a clock file nothing happens."""
        if self.clock is not None:
            fresh = self.clock.with_suffix(".new")
            fresh.write_text(f"{seconds:+d}\n")
            os.replace(fresh, self.clock)

    def processes(self) -> dict[str, psutil.Process]:
        """Coordinator, supervisor and workers ("worker-0", …) that live."""
        alive: dict[str, psutil.Process] = {}
        for name, root in (("coordinator", self.coordinator), ("supervisor", self.supervisor)):
            if root is not None and root.poll() is None:
                alive[name] = psutil.Process(root.pid)
        with contextlib.suppress(psutil.NoSuchProcess):
            # The first children are the workers, in order of their start; the one that warms kernels comes after them.
            for child in alive["supervisor"].children() if "supervisor" in alive else ():
                number = len([name for name in alive if name.startswith("worker-")])
                if number < self.workers:
                    alive[f"worker-{number}"] = child
        return alive

    @contextlib.contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        process = self.processes().get(name)
        try:
            if process is not None:
                process.send_signal(signal.SIGSTOP)
            yield
        finally:
            if process is not None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def strike(self, name: str) -> None:
        """SIGKILL to one process, if it lives; returns when it is dead."""
        process = self.processes().get(name)
        if process is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
                process.wait(STOP_WITHIN_S)

    def heal(self, within_s: float = READY_WITHIN_S) -> None:
        """No more faults, everything runs again. Raises AssertionError when it is not ready in time."""
        self.control.clear()
        self.move_clock(0)
        for process in self.processes().values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)
        self.start_missing()
        self.wait_ready(within_s)

    def start_missing(self) -> None:
        if self.supervisor is None or self.supervisor.poll() is not None:
            self.start_workers()
        if self.coordinator is None or self.coordinator.poll() is not None:
            self.start_coordinator()

    def start_damaged(self, within_s: float) -> str:
        """Start, and wait until nothing changes any more: "ready", "partial" (shards refuse), "refused" (a process
        ended with a message) or "stuck" (nothing answers)."""
        self.start_workers()
        self.start_coordinator()
        give_up = time.monotonic() + within_s
        same_since, before = time.monotonic(), ""
        while time.monotonic() < give_up:
            for process in (self.supervisor, self.coordinator):
                if process is not None and process.poll() is not None:
                    return "refused"
            with contextlib.suppress(OSError):
                answer = self.get("/-/ready")
                if answer.status == 200:
                    return "ready"
                text = answer.body.decode()
                if text != before or "loading" in text or "no worker has registered" in text:
                    same_since, before = time.monotonic(), text
                if time.monotonic() - same_since > SETTLED_AFTER_S:
                    return "partial"
            time.sleep(0.05)
        return "stuck"

    def copy_data(self, target: Path) -> None:
        """Of the stopped cluster."""
        shutil.copytree(self.data, target, ignore=shutil.ignore_patterns("*.sock"), symlinks=True)
