"""Runs workloads under the recorder, in a process of their own."""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.powerloss import trace
from tests.powerloss.files import FileSystem, walk

SYNC_DELAY_US = 200
"""A sync takes as long as on a quick disk, so that others write meanwhile."""
_SOURCE = Path(__file__).with_name("recorder.c")


def compiled(directory: Path) -> Path:
    """The recorder's library. Raises RuntimeError where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("the power-loss tests need gcc and the C library's headers (apt install gcc libc6-dev)")
    library = directory / "recorder.so"
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if made.returncode:
        raise RuntimeError(f"recorder.c does not compile: {made.stderr}")
    return library


def record(directory: Path, runs: Sequence[str], *, seed: int, timeout_s: float) -> None:
    """Have each run (a workload's name, or `name omission`, see `omissions`) recorded in directory/<run>/."""
    library = compiled(directory)
    command = [sys.executable, "-m", "tests.powerloss.recorded", str(directory), str(seed), *runs]
    environment = {**os.environ, "LD_PRELOAD": str(library), "TRIPTYCH_LOG_LEVEL": "CRITICAL"}
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=Path.cwd()
    )
    if ended.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stdout}\n{ended.stderr}")


class Recorder:
    """In the recorded process. Numbers its acts; safe to use from many threads."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self._numbers = itertools.count()

    @contextmanager
    def recording(self, root: Path, file: Path) -> Iterator[None]:
        self._numbers = itertools.count()
        self._library.powerloss_begin(str(root).encode(), str(file).encode(), SYNC_DELAY_US)
        try:
            yield
        finally:
            self._library.powerloss_end()

    def begin(self, told: Any) -> Callable[[Any], None]:
        """Something that will be acknowledged is tried; what is returned says that it was, and what came of it."""
        number = next(self._numbers)
        self._mark("begin", number, told)
        return lambda result: self._mark("done", number, result)

    def act(self, told: Any, work: Callable[[], Any]) -> Any:
        """`work`, the acknowledgement of which is its return. What it returns is not told."""
        done = self.begin(told)
        result = work()
        done(None)
        return result

    def settled(self) -> None:
        """What was done so far is on the disk, however it came there: the test is about what follows."""
        self._mark("settled", 0, None)

    def _mark(self, *what: Any) -> None:
        data = msgspec.msgpack.encode(what)
        self._library.powerloss_mark(data, ctypes.c_size_t(len(data)))


def assert_complete(events: Sequence[trace.Event], root: Path) -> None:
    """That the trace has everything: what it makes of the directory is what is there."""
    files = FileSystem(str(root))
    for entry in events:
        files.play(entry)
    recorded = {path: node for path, node in walk(files.root, lambda node: node.names) if path}
    there = {str(path.relative_to(root)): path for path in root.rglob("*")}
    assert set(recorded) == set(there), f"recorded and there differ: {sorted(set(recorded) ^ set(there))}"
    for name, path in there.items():
        assert path.is_dir() == recorded[name].is_directory, name
        assert path.is_dir() or path.read_bytes() == recorded[name].content, f"{name} is not what was recorded"
