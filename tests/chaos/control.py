"""The file by which the harness switches faults on and off in running processes (`faults.c`, `launch.py`)."""

from __future__ import annotations

import mmap
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("faults.c")
BYTES = 512
WRITE, SYNC, TRUNCATE, RENAME = 1, 2, 4, 8
KILL_HALF_WRITTEN, KILL_BEFORE, KILL_AFTER = 1, 2, 3
_ENABLED, _OPERATIONS, _ERROR, _PERMILLE, _DELAY, _KILL_WHEN, _COUNTDOWN, _HITS, _STATE = range(9)
_DROP, _HOLD, _HOLD_MS, _MESSAGE_HITS = range(16, 20)
_FILTER_AT, _FILTER_BYTES = 256, 256


def compiled(directory: Path) -> Path:
    """The library of disk faults, made by gcc. Raises CalledProcessError."""
    library = directory / f"faults{sysconfig.get_config_var('SHLIB_SUFFIX') or '.so'}"
    command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@dataclass(frozen=True, slots=True)
class DiskFault:
    """What happens to calls (`operations`, a sum of WRITE, SYNC, TRUNCATE, RENAME) on files whose path below the data
    directory contains `path`: they fail with `error` (an errno) in `permille` of 1,000 cases, take `delay_ms` more, or
    the process dies at the `countdown`-th of them (`kill_when`)."""

    operations: int
    error: int = 0
    permille: int = 1000
    delay_ms: int = 0
    kill_when: int = 0
    countdown: int = 0
    path: str = ""


class Control:
    """Both ends of the file: the harness sets, `launch.py` reads the part about messages."""

    def __init__(self, path: Path, *, create: bool) -> None:
        if create:
            path.write_bytes(bytes(BYTES))
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), BYTES)
        self._words = np.frombuffer(self._map, dtype=np.uint32, count=_FILTER_AT // 4)

    def disk(self, fault: DiskFault, seed: int) -> None:
        """From now on, until `clear` or another fault."""
        words = self._words
        words[_ENABLED] = 0
        self._map[_FILTER_AT:] = fault.path.encode().ljust(_FILTER_BYTES, b"\0")
        words[[_OPERATIONS, _ERROR, _PERMILLE, _DELAY]] = fault.operations, fault.error, fault.permille, fault.delay_ms
        words[[_KILL_WHEN, _COUNTDOWN, _STATE]] = fault.kill_when, fault.countdown, seed & 0xFFFFFFFF
        words[_ENABLED] = 1

    def messages(self, drop_permille: int, hold_permille: int, hold_ms_max: int) -> None:
        """Of the messages between coordinator and workers so many are dropped, and so many come later."""
        self._words[[_DROP, _HOLD, _HOLD_MS]] = drop_permille, hold_permille, hold_ms_max

    def clear(self) -> None:
        self._words[_ENABLED] = 0
        self._words[[_DROP, _HOLD]] = 0

    @property
    def drop_permille(self) -> int:
        return int(self._words[_DROP])

    @property
    def hold_permille(self) -> int:
        return int(self._words[_HOLD])

    @property
    def hold_ms_max(self) -> int:
        return int(self._words[_HOLD_MS])

    def count_message(self) -> None:
        self._words[_MESSAGE_HITS] += 1

    @property
    def hits(self) -> int:
        """Calls that have failed and messages that were dropped or held."""
        return int(self._words[_HITS]) + int(self._words[_MESSAGE_HITS])
