"""Which records of a write-ahead log its streams have released, and therefore which streams still need which files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from worker.storage.wal.files import File, position_of
from worker.storage.wal.losses import StreamKey

BEHIND_FILES = 32
"""A stream is behind when it still needs a file although the newer files in use have the size of this many full
files."""
HELD_UP_BYTES, HELD_UP_SHARE, HELD_UP_S = 1 << 20, 16, 60.0
"""A stream is also behind when it is one of the last that need a closed file: the file has at least HELD_UP_BYTES, and
for HELD_UP_S less than 1/HELD_UP_SHARE of it has been needed. Otherwise a few records of an idle shard would keep a
file that busy shards have filled."""


class Releases:
    """For one thread at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._released: dict[StreamKey, int] = {}

    def release(self, stream: StreamKey, position: int) -> bool:
        """Records of the stream below `position` are not needed any more. Returns whether this releases any."""
        if position <= self._released.get(stream, 0):
            return False
        self._released[stream] = position
        return True

    def needs(self, stream: StreamKey, file: File) -> bool:
        """Whether the stream needs records of this file."""
        return file.last.get(stream, -1) >= self._released.get(stream, 0)

    def is_needed(self, file: File) -> bool:
        """Whether any stream needs records of this file."""
        return any(self.needs(stream, file) for stream in file.last)

    def note_held_up(self, closed: Iterable[File]) -> None:
        """Note for which of these files only few records are needed from now on."""
        for file in closed:
            if file.held_up_since is None and file.end >= HELD_UP_BYTES:
                needed_bytes = sum(self._needed_bytes(stream, file) for stream in file.last)
                if needed_bytes * HELD_UP_SHARE < file.end:
                    file.held_up_since = self._clock()

    def _needed_bytes(self, stream: StreamKey, file: File) -> int:
        """An upper bound of the bytes of the file that the stream needs: the size of its records, or of what lies above
        the position up to which it has released them."""
        if not self.needs(stream, file):
            return 0
        unreleased_bytes = position_of(file.number, file.end) - self._released.get(stream, 0)
        return min(file.bytes_of[stream], unreleased_bytes)

    def is_behind(self, stream: StreamKey, used: Sequence[File], file_bytes: int) -> bool:
        """Whether the stream should soon release its records in the files in use: see BEHIND_FILES and HELD_UP_S.
        `used`: by ascending number. `file_bytes`: the size of a full file."""
        held_up_before_s = self._clock() - HELD_UP_S
        newer_bytes = 0
        for file in reversed(used):
            is_held_up = file.held_up_since is not None and file.held_up_since <= held_up_before_s
            if (is_held_up or newer_bytes >= BEHIND_FILES * file_bytes) and self.needs(stream, file):
                return True
            newer_bytes += file.size
        return False
