"""The index of a Prometheus TSDB block: its series with their labels and chunks; and its tombstones.

Formats: https://github.com/prometheus/prometheus/blob/main/tsdb/docs/format/index.md and …/tombstones.md. All numbers
of fixed size are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

import numpy as np

from coordinator.transfer.tsdb_chunks import is_sound
from shared.protobuf_fields import delimited_head, read_varint

MAGIC, VERSION = 0xBAAAD700, 2
TOMBSTONES_MAGIC = 0x0130BA30
_TOC = struct.Struct(">6QI")
_SERIES_ALIGNMENT = 16
CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class IndexedSeries:
    """A series: its number in the index, its canonical label bytes, and the references of its chunks in the order of
    time."""

    reference: int
    labels: bytes
    chunks: list[int]


class Index:
    """An index file. Raises ValueError where it makes no sense or does not have its checksum, and OSError."""

    def __init__(self, path: Path) -> None:
        with open(path, "rb") as file:
            self._data = mmap(file.fileno(), 0, access=ACCESS_READ)
        data = self._data
        self._bytes = np.frombuffer(data, np.uint8)
        if len(data) < 5 + _TOC.size or struct.unpack_from(">IB", data) != (MAGIC, VERSION):
            raise ValueError(f"{path} is no index of a TSDB block, version {VERSION}")
        symbols, self._series_at, label_indexes, label_offsets, postings, _, _ = _TOC.unpack_from(
            data, len(data) - _TOC.size
        )
        following = [at for at in (label_indexes, label_offsets, postings) if at > self._series_at]
        self._series_end = min([*following, len(data) - _TOC.size])
        has_checksum = is_sound(self._bytes, len(data) - _TOC.size, len(data) - CHECKSUM_BYTES)
        if not has_checksum or not 0 < symbols < self._series_at <= self._series_end:
            raise ValueError(f"{path} has a table of contents that makes no sense; it may be cut off")
        try:
            self._symbols = self._read_symbols(symbols)
        except (IndexError, struct.error):
            raise ValueError(f"{path} has a table of symbols that makes no sense") from None
        self._pairs: dict[tuple[int, int], bytes] = {}

    @property
    def position_end(self) -> int:
        """Behind the position of the last series."""
        return self._series_end

    def _read_symbols(self, at: int) -> list[bytes]:
        size, count = struct.unpack_from(">II", self._data, at)
        if not is_sound(self._bytes, at + 4, at + 4 + size):
            raise IndexError(at)
        at += 8
        symbols = []
        for _ in range(count):
            size, at = read_varint(self._data, at)  # type: ignore[arg-type]
            symbols.append(self._data[at : at + size])
            at += size
        return symbols

    def series(self, position: int = 0) -> Iterator[tuple[int, IndexedSeries]]:
        """(The position of the next series, the series) from this position on, in the order of the index."""
        data, at = self._data, max(position, self._series_at)
        while at < self._series_end:
            at += -at % _SERIES_ALIGNMENT
            if at >= self._series_end:
                return
            start = at
            try:
                size, at = read_varint(data, at)  # type: ignore[arg-type]
                end = at + size
                if not size or end > self._series_end or not is_sound(self._bytes, at, end):
                    raise ValueError(f"the index has a series at byte {start} whose checksum is another: it is damaged")
                series = self._one(start // _SERIES_ALIGNMENT, at, end)
            except IndexError:
                raise ValueError(f"the index has a series at byte {start} that makes no sense") from None
            at = end + CHECKSUM_BYTES
            yield at, series

    def _one(self, reference: int, at: int, end: int) -> IndexedSeries:
        data = self._data
        count, at = read_varint(data, at)  # type: ignore[arg-type]
        parts = []
        for _ in range(count):
            name, at = read_varint(data, at)  # type: ignore[arg-type]
            value, at = read_varint(data, at)  # type: ignore[arg-type]
            pair = self._pairs.get((name, value))
            if pair is None:
                pair = self._pairs[name, value] = _pair(self._symbols[name], self._symbols[value])
            parts.append(pair)
        count, at = read_varint(data, at)  # type: ignore[arg-type]
        chunks = []
        chunk = 0
        for number in range(count):
            _, at = read_varint(data, at)  # type: ignore[arg-type]
            _, at = read_varint(data, at)  # type: ignore[arg-type]
            step, at = read_varint(data, at)  # type: ignore[arg-type]
            chunk += step if number == 0 else step >> 1 ^ -(step & 1)
            chunks.append(chunk)
        if at != end:
            raise IndexError(at)
        return IndexedSeries(reference, b"".join(parts), chunks)


def _pair(name: bytes, value: bytes) -> bytes:
    """A label as remote write has it."""
    label = delimited_head(1, len(name)) + name + delimited_head(2, len(value)) + value
    return delimited_head(1, len(label)) + label


def tombstones(path: Path) -> dict[int, list[tuple[int, int]]]:
    """Deleted times (start ≤ t ≤ end, in ms) by the number of the series; empty without the file. Raises ValueError."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    if len(data) < 9 or struct.unpack_from(">IB", data) != (TOMBSTONES_MAGIC, 1):
        raise ValueError(f"{path} is no file of tombstones, version 1")
    deleted: dict[int, list[tuple[int, int]]] = {}
    at, end = 5, len(data) - CHECKSUM_BYTES
    if not is_sound(np.frombuffer(data, np.uint8), at, end):
        raise ValueError(f"{path} is damaged: its checksum is another")
    while at < end:
        reference, at = read_varint(data, at)
        first, at = read_varint(data, at)
        last, at = read_varint(data, at)
        deleted.setdefault(reference, []).append((first >> 1 ^ -(first & 1), last >> 1 ^ -(last & 1)))
    return deleted
