"""Records on their way from the shards to readers: pages of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.errors import Internal
from shared.log import blocks as log_blocks
from shared.log import headers as log_headers
from shared.wire import Frame, size_of


class Records:
    """Records as columns: `sequences`, and `values` and `keys` as concatenated bytes with their lengths. `keys` is
    empty if all records have the requested key. `times`: when each was appended (Batch.time_ms); by default unknown.
    `headed`: whether each of `values` begins with headers (shared.log.headers); by default none does."""

    __slots__ = ("headed", "key_lengths", "keys", "sequences", "times", "value_lengths", "values")

    def __init__(
        self,
        sequences: NDArray[np.uint64],
        value_lengths: NDArray[np.uint32],
        values: Frame,
        key_lengths: NDArray[np.uint32],
        keys: Frame,
        times: NDArray[np.int64] | None = None,
        headed: NDArray[np.bool_] | None = None,
    ) -> None:
        self.headed = np.zeros(len(sequences), np.bool_) if headed is None else headed
        self.times = np.zeros(len(sequences), np.int64) if times is None else times
        assert len(value_lengths) == len(sequences) == len(self.times)
        assert len(key_lengths) in (0, len(sequences)), "each record has a key, or all have the requested one"
        self.sequences = sequences
        self.value_lengths = value_lengths
        self.values = values
        self.key_lengths = key_lengths
        self.keys = keys

    def __len__(self) -> int:
        return len(self.sequences)

    @classmethod
    def of(
        cls,
        sequences: NDArray[np.uint64],
        values: Sequence[bytes],
        keys: Sequence[bytes] = (),
        times: NDArray[np.int64] | None = None,
        headed: NDArray[np.bool_] | None = None,
    ) -> Records:
        return cls(sequences, _lengths(values), b"".join(values), _lengths(keys), b"".join(keys), times, headed)

    @classmethod
    def from_frames(cls, frames: Sequence[Frame]) -> Records:
        sequences, value_lengths, values, key_lengths, keys, times, headed = frames
        return cls(
            np.frombuffer(sequences, np.uint64),
            np.frombuffer(value_lengths, np.uint32),
            values,
            np.frombuffer(key_lengths, np.uint32),
            keys,
            np.frombuffer(times, np.int64),
            np.frombuffer(headed, np.bool_) if size_of(headed) else None,
        )

    def frames(self) -> list[Frame]:
        assert self.sequences.dtype == np.uint64 and self.value_lengths.dtype == self.key_lengths.dtype == np.uint32
        assert self.times.dtype == np.int64
        assert int(self.value_lengths.sum(dtype=np.int64)) == size_of(self.values)
        assert int(self.key_lengths.sum(dtype=np.int64)) == size_of(self.keys)
        return [
            self.sequences.tobytes(),
            self.value_lengths.tobytes(),
            self.values,
            self.key_lengths.tobytes(),
            self.keys,
            self.times.tobytes(),
            self.headed.tobytes() if self.headed.any() else b"",
        ]

    def cut(self, low: int, high: int) -> Records:
        """The records at positions low ≤ i < high."""
        if low <= 0 and high >= len(self):
            return self
        columns: list[Any] = []
        for lengths, octets in ((self.value_lengths, self.values), (self.key_lengths, self.keys)):
            begin, size = int(lengths[:low].sum()), int(lengths[low:high].sum())
            columns += [lengths[low:high], memoryview(octets)[begin : begin + size]]
        columns += [self.times[low:high], self.headed[low:high]]
        return Records(self.sequences[low:high], *columns)

    def taking(self, places: NDArray[np.int64]) -> Records:
        """The records at these positions, in this order."""
        if not len(places):
            return Records.of(NO_NUMBERS, ())
        values = _taken(self.values, self.value_lengths, places)
        keys = _taken(self.keys, self.key_lengths, places) if len(self.key_lengths) else (b"", self.key_lengths)
        flags = self.times[places], self.headed[places]
        return Records(self.sequences[places], values[1], values[0], keys[1], keys[0], *flags)

    def under(self, key: bytes) -> Records:
        """These records, which have no keys, with this key."""
        assert not len(self.key_lengths)
        lengths = np.full(len(self), len(key), np.uint32)
        keys = key * len(self)
        return Records(self.sequences, self.value_lengths, self.values, lengths, keys, self.times, self.headed)

    @classmethod
    def joined(cls, pieces: Sequence[Records]) -> Records:
        """The records of all pieces, one piece after another."""
        if len(pieces) == 1:
            return pieces[0]
        if not pieces:
            return cls.of(NO_NUMBERS, ())
        return cls(
            np.concatenate([piece.sequences for piece in pieces]),
            np.concatenate([piece.value_lengths for piece in pieces]),
            b"".join(piece.values for piece in pieces),
            np.concatenate([piece.key_lengths for piece in pieces]),
            b"".join(piece.keys for piece in pieces),
            np.concatenate([piece.times for piece in pieces]),
            np.concatenate([piece.headed for piece in pieces]),
        )

    def value_list(self) -> list[bytes]:
        """The records' values; a value with headers is a HeadedValue."""
        values = self.stored_values()
        for at in np.flatnonzero(self.headed).tolist():
            values[at] = log_headers.split(values[at])
        return values

    def stored_values(self) -> list[bytes]:
        """The records' values, including the headers that some begin with."""
        return _cut(self.values, self.value_lengths)

    def key_list(self) -> list[bytes]:
        """The records' keys; [] when all records have the requested key."""
        return _cut(self.keys, self.key_lengths)


class Page(NamedTuple):
    """Records, and how far they are complete; see `ScanReply`."""

    records: Records
    next: int
    done: bool


def check_progress(page: Page, start: int, end: int, reverse: bool = False) -> None:
    """Raises Internal unless the page of start ≤ number < end is the last one, or the range of the next page is smaller
    than this one, so that a reader that follows `next` reaches the end."""
    moves_on = start <= page.next < end if reverse else start < page.next <= end
    is_last = page.done and page.next == (start if reverse else end)
    if not moves_on and not is_last:
        right = f"from {start} to below {end}" if reverse else f"above {start} and at most {end}"
        raise Internal(f"a page of the log from {start} to {end} goes on at {page.next}; it must be {right}")


def merge_pages(pages: Sequence[Page], limit: int) -> Page:
    """Merge ascending pages of several shards into one page by sequence number, as far as all of them are complete."""
    upto = min(page.next for page in pages)
    done = all(page.done for page in pages)
    rows = [
        row
        for page in pages
        for row in zip(
            page.records.sequences.tolist(),
            page.records.key_list(),
            page.records.stored_values(),
            page.records.times.tolist(),
            page.records.headed.tolist(),
            strict=True,
        )
        if row[0] < upto
    ]
    rows.sort()
    if len(rows) > limit:
        upto, done = rows[limit][0], False
        del rows[limit:]
    numbers, keys, values, times, headed = zip(*rows, strict=True) if rows else ((), (), (), (), ())
    columns = np.array(times, np.int64), np.array(headed, np.bool_)
    return Page(Records.of(np.array(numbers, np.uint64), values, keys, *columns), upto, done)


def _taken(octets: Frame, lengths: NDArray[np.uint32], places: NDArray[np.int64]) -> tuple[Frame, NDArray[np.uint32]]:
    """(the texts at these positions among concatenated texts, their lengths)."""
    table = np.zeros((len(lengths), log_blocks.COLUMNS), np.int64)
    table[:, log_blocks.VALUE] = np.cumsum(lengths, dtype=np.int64) - lengths
    table[:, log_blocks.VALUE_LENGTH] = lengths
    return log_blocks.taken(np.frombuffer(octets, np.uint8), table, log_blocks.VALUE, places).data, lengths[places]


def _lengths(items: Sequence[bytes]) -> NDArray[np.uint32]:
    return np.fromiter(map(len, items), np.uint32, len(items))


def _cut(joined: Frame, lengths: NDArray[np.uint32]) -> list[bytes]:
    data = bytes(joined)
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    assert (ends[-1] if ends else 0) == len(data)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


NO_NUMBERS = np.zeros(0, np.uint64)
