"""A process that has imported what others need and forks them, so that a start costs no imports and no kernels.

It reads a line of JSON for each process that is to be started, and writes its process id. The forked ones become
children of the harness, which waits for them itself (PR_SET_CHILD_SUBREAPER), and die with it however it ends
(PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S = 0.01
ADOPTED_WITHIN_S = 5.0


@dataclass
class Spawned:
    """Of a forked process what the harness needs of `subprocess.Popen`."""

    pid: int
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # another thread has just waited for it
                self.returncode = -signal.SIGKILL
                return self.returncode
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        give_up = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > give_up:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(POLL_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@dataclass
class Zygote:
    """The harness's end. `module`: what calls `serve`; `environment`: of the process."""

    module: str
    environment: Mapping[str, str]
    root: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        command, pipe = [sys.executable, "-m", self.module], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=self.environment, cwd=self.root)

    def spawn(self, module: str, environment: Mapping[str, str], directory: Path, log: Path) -> Spawned:
        """A process that runs `module` with this environment in this directory; it appends to `log`."""
        order = {"module": module, "environment": dict(environment), "directory": str(directory), "log": str(log)}
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        return Spawned(int(answer))

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def inherited() -> dict[str, str]:
    """The environment of this process without the settings of the product."""
    return {name: value for name, value in os.environ.items() if not name.startswith("TRIPTYCH_")}


def _die_with(parent: int) -> None:
    """Be killed when this parent ends, which this process may have to get first (it is an orphan being adopted)."""
    give_up = time.monotonic() + ADOPTED_WITHIN_S
    while os.getppid() != parent and time.monotonic() < give_up:
        os.sched_yield()  # a sleep fails for a process with another clock
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the fault harness is gone")


def _become(order: dict[str, Any], harness: int, run: Callable[[str], None]) -> None:
    """In the forked process: as if it had been started alone."""
    os.setsid()
    _die_with(harness)
    null, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.environ.clear()
    os.environ.update(order["environment"])
    os.chdir(order["directory"])
    random.seed()
    run(order["module"])


def serve(run: Callable[[str], None]) -> None:
    """In the zygote, when it has imported everything: fork a process for each order, which calls `run` with its
    module, until the harness closes the pipe or ends."""
    harness = os.getppid()
    _die_with(harness)
    for line in sys.stdin.buffer:
        reading, writing = os.pipe()
        middle = os.fork()
        if middle == 0:
            own = os.fork()
            if own:
                os.write(writing, b"%d\n" % own)
                os._exit(0)
            code = 1
            try:
                _become(json.loads(line), harness, run)
                code = 0
            except SystemExit as ended:
                if isinstance(ended.code, str):
                    sys.stderr.write(ended.code + "\n")
                code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        os.waitpid(middle, 0)
        sys.stdout.buffer.write(os.read(reading, 32))
        sys.stdout.buffer.flush()
        os.close(reading)
        os.close(writing)
