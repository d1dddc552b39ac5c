"""Chunks of native histograms, written by plain Python from the document of their format."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.remote_read.histogram_chunks import WIDTHS

STALE_BITS = 0x7FF0000000000002
CUSTOM = -53


@dataclass(frozen=True)
class Layout:
    """`positive`, `negative`: spans as (offset, length)."""

    schema: int
    threshold: float
    positive: Sequence[tuple[int, int]] = ()
    negative: Sequence[tuple[int, int]] = ()
    bounds: Sequence[float] = ()

    @property
    def buckets(self) -> int:
        return sum(length for _, length in (*self.positive, *self.negative))


@dataclass(frozen=True)
class Row:
    """A histogram; `counts` of positive buckets, then of negative ones."""

    time_ms: int
    count: float
    zero: float
    sum: float
    counts: Sequence[float] = field(default_factory=list)

    @property
    def is_stale(self) -> bool:
        return _word(self.sum) == STALE_BITS


class _Bits:
    def __init__(self) -> None:
        self._digits: list[str] = []

    def put(self, value: int, count: int) -> None:
        self._digits.append(format(value & ((1 << count) - 1), f"0{count}b"))

    def _variable(self, value: int, place: int) -> None:
        self.put((1 << place + 2) - 2 if place < 7 else 0xFF, min(place + 2, 8))
        self.put(value, int(WIDTHS[place]))

    def unsigned(self, value: int) -> None:
        if not value:
            return self.put(0, 1)
        return self._variable(value, next(place for place, width in enumerate(WIDTHS.tolist()) if value >> width == 0))

    def signed(self, value: int) -> None:
        if not value:
            return self.put(0, 1)
        ranges = (1 << width - 1 for width in WIDTHS.tolist())
        fits = (place for place, most in enumerate(ranges) if -most + (place < 7) <= value <= most - (place == 7))
        return self._variable(value, next(fits))

    def double(self, value: float) -> None:
        self.put(_word(value), 64)

    def bytes(self) -> bytes:
        digits = "".join(self._digits)
        digits += "0" * (-len(digits) % 8)
        return int(digits, 2).to_bytes(len(digits) // 8, "big")


def _word(value: float) -> int:
    return int(struct.unpack(">Q", struct.pack(">d", value))[0])


def chunk_data(layout: Layout, rows: Sequence[Row], *, is_float: bool, flags: int = 0) -> bytes:
    """The data of a chunk; `flags`: two bits (0b10: after a reset, 0b01: not, 0b11: gauge)."""
    out = _Bits()
    out.put(len(rows), 16)
    out.put(flags << 6, 8)
    mantissa, power = math.frexp(layout.threshold)
    if layout.threshold == 0:
        out.put(0, 8)
    elif mantissa == 0.5 and -243 <= power - 1 <= 10:
        out.put(power - 1 + 244, 8)
    else:
        out.put(255, 8)
        out.double(layout.threshold)
    out.signed(layout.schema)
    for spans in (layout.positive, layout.negative):
        out.unsigned(len(spans))
        for offset, length in spans:
            out.unsigned(length)
            out.signed(offset)
    if layout.schema == CUSTOM:
        out.unsigned(len(layout.bounds))
        for bound in layout.bounds:
            scaled = bound * 1000
            if 0 <= scaled <= 33554430 and scaled == int(scaled):
                out.unsigned(int(scaled) + 1)
            else:
                out.put(0, 1)
                out.double(bound)
    (_floats if is_float else _integers)(out, layout, rows)
    return out.bytes()


def _integers(out: _Bits, layout: Layout, rows: Sequence[Row]) -> None:
    positive = sum(length for _, length in layout.positive)
    values, changes = [0] * (3 + layout.buckets), [0] * (3 + layout.buckets)
    for k, row in enumerate(rows):
        counts = [int(count) for count in row.counts]
        sides = counts[:positive], counts[positive:]
        deltas = [now - before for side in sides for before, now in zip([0, *side], side, strict=False)]
        for place, value in enumerate([row.time_ms, int(row.count), int(row.zero)]):
            _put_integer(out, values, changes, place, value, k)
        if k == 0:
            out.double(row.sum)
        else:
            _put_xor(out, _word(rows[k - 1].sum) ^ _word(row.sum))
        for place, value in enumerate([] if row.is_stale else deltas, 3):
            _put_integer(out, values, changes, place, value, k)


def _put_integer(out: _Bits, values: list[int], changes: list[int], place: int, value: int, k: int) -> None:
    if k == 0:
        out.unsigned(value) if place in (1, 2) else out.signed(value)
        values[place] = value
        return
    change = value - values[place]
    out.signed(change if k == 1 else change - changes[place])
    values[place], changes[place] = value, change


def _floats(out: _Bits, layout: Layout, rows: Sequence[Row]) -> None:
    values, changes = [0], [0]
    for k, row in enumerate(rows):
        _put_integer(out, values, changes, 0, row.time_ms, k)
        numbers = [row.count, row.zero, row.sum, *([] if row.is_stale else row.counts)]
        before = [rows[k - 1].count, rows[k - 1].zero, rows[k - 1].sum, *rows[k - 1].counts] if k else numbers
        for last, number in zip(before, numbers, strict=False):
            if k == 0:
                out.double(number)
            else:
                _put_xor(out, _word(last) ^ _word(number))


def _put_xor(out: _Bits, difference: int) -> None:
    """With a window of its own each time."""
    if not difference:
        return out.put(0, 1)
    leading = min(64 - difference.bit_length(), 31)
    trailing = (difference & -difference).bit_length() - 1
    size = 64 - leading - trailing
    out.put(0b11, 2)
    out.put(leading, 5)
    out.put(size & 63, 6)
    return out.put(difference >> trailing, size)
