"""Which records of a write-ahead log its streams have released, and so which files are still needed, and by whom."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from worker.storage.wal.files import File, position_of
from worker.storage.wal.losses import Key

BEHIND_FILES = 32
"""A stream is behind when it still needs a file that newer files in use have followed, with the size of so many full
ones."""
HELD_UP_BYTES, HELD_UP_SHARE, HELD_UP_S = 1 << 20, 16, 60.0
"""It is behind as well when it is among the last that need a closed file of this size: for so long, only a fraction
(1/16) of the file's records has been needed. Else, few records of an idle shard would keep what busy ones filled."""


class Releases:
    """For one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._released: dict[Key, int] = {}

    def release(self, stream: Key, position: int) -> bool:
        """Records of the stream below `position` are not needed any more. Returns whether that is news."""
        if position <= self._released.get(stream, 0):
            return False
        self._released[stream] = position
        return True

    def needs(self, stream: Key, file: File) -> bool:
        """Whether the stream needs records of this file."""
        return file.last.get(stream, -1) >= self._released.get(stream, 0)

    def is_needed(self, file: File) -> bool:
        """Whether any stream needs records of this file."""
        return any(self.needs(stream, file) for stream in file.last)

    def note_held_up(self, closed: Iterable[File]) -> None:
        """Note which of these files are needed for few of their records from now on."""
        for file in closed:
            if file.held_up_since is None and file.end >= HELD_UP_BYTES:
                needed_bytes = sum(self._needed_bytes(stream, file) for stream in file.last)
                if needed_bytes * HELD_UP_SHARE < file.end:
                    file.held_up_since = self._clock()

    def _needed_bytes(self, stream: Key, file: File) -> int:
        """At most so many bytes of the file does the stream need: those of its records, and none below the position up
        to which it has released them."""
        if not self.needs(stream, file):
            return 0
        behind_released = position_of(file.number, file.end) - self._released.get(stream, 0)
        return min(file.bytes_of[stream], behind_released)

    def is_behind(self, stream: Key, used: Sequence[File], file_bytes: int) -> bool:
        """Whether the stream should soon release what it needs of the files in use, the oldest first: see BEHIND_FILES
        and HELD_UP_S. `file_bytes`: the size of a full file."""
        held_up_before_s = self._clock() - HELD_UP_S
        newer_bytes = 0
        for file in reversed(used):
            is_held_up = file.held_up_since is not None and file.held_up_since <= held_up_before_s
            if (is_held_up or newer_bytes >= BEHIND_FILES * file_bytes) and self.needs(stream, file):
                return True
            newer_bytes += file.size
        return False
