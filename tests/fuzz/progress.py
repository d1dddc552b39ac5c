"""What a campaign's process and its watcher share, in memory that outlives the process: counters, the current input."""

from __future__ import annotations

import ctypes
import mmap
import time

INPUT_BYTES_MAX = 1 << 20


class _Counters(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.c_uint64),
        ("slowest_s", ctypes.c_double),
        ("started", ctypes.c_double),
        ("length", ctypes.c_uint64),
    )


class Progress:
    """Written by the campaign's process, read by its watcher. `started`: when the current input began, by the monotonic
    clock; 0: between two inputs."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Counters) + INPUT_BYTES_MAX)
        self.counters = _Counters.from_buffer(self._memory)
        self._input_at = ctypes.sizeof(_Counters)

    def begin(self, data: bytes) -> None:
        """Note the input that is tried next, so that it is known if it ends the process."""
        kept = data[:INPUT_BYTES_MAX]
        self._memory[self._input_at : self._input_at + len(kept)] = kept
        counters = self.counters
        counters.length = len(kept)
        counters.started = time.monotonic()

    def end(self) -> None:
        """The current input is done."""
        counters = self.counters
        seconds = time.monotonic() - counters.started
        counters.started = 0.0
        counters.inputs += 1
        if seconds > counters.slowest_s:
            counters.slowest_s = seconds

    def running_s(self) -> float:
        """For how long the current input has been running; 0 between two inputs."""
        started = self.counters.started
        return time.monotonic() - started if started else 0.0

    def input(self) -> bytes:
        """The current input, or the last one."""
        return self._memory[self._input_at : self._input_at + self.counters.length]
