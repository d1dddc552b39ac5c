"""Reads some runs of a chunk with pages directly into the arrays of a result."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from shared.histograms.batch import INTS, Ints
from shared.histograms.references import refers
from shared.kernels import inlined, kernel, types
from shared.process.array_memory import uncounted
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.chunk_layout import (
    CONSTANT,
    FLOATS,
    HEADER,
    KINDS_MAX,
    PAGE_NUMBERS,
    SAME,
    STREAMS,
    TIMES_KIND,
    TIMES_STREAMS,
    TIMES_WALK,
    VALUES_KIND,
    VALUES_SHIFT,
    VALUES_WALK,
    VERSION,
)
from worker.series.blocks.compression import fill
from worker.series.blocks.integer_runs import EXACT, NARROW, WIDE
from worker.series.pieces import first_at_least

Flags = NDArray[np.bool_]

_T_KIND, _T_WALK, _T_SLOPE, _T_AT, _T_PAGE, _V_KIND, _V_WALK, _V_BASE, _V_SLOPE, _V_AT, _V_PAGE = range(11)
"""Columns of the table of runs. `AT`: where the numbers of the run begin in the stream of its kind; `PAGE`: the page
that has them. The base of a CONSTANT run is the bits of its value."""
_COLUMNS = 11
_PAGE_BYTES = 500
"""The approximate memory of the positions of a page's arrays as Python objects."""
_NAN_BITS = 0x7FF8000000000000

_FLAGS = types.Array(types.boolean, 1, "C")
_PAGES = types.Array(types.boolean, 2, "C")
_PAGES_IN = types.Array(types.boolean, 2, "C", readonly=True)
_TABLE = types.Array(types.int64, 2, "C")
_TABLE_IN = types.Array(types.int64, 2, "C", readonly=True)
_NARROW_IN = types.Array(types.int16, 1, "C", readonly=True)


@dataclass(slots=True)
class _Pages:
    """Decompressed pages. `streams`: the arrays of a chunk, each for all of its pages. `is_filled`: bool[2, pages],
    which pages have the residuals of times, and those of values; `is_complete`: whether all have both. Filled pages do
    not change; a thread that fills others holds `filling`."""

    streams: list[NDArray]
    is_filled: Flags
    is_complete: bool = False
    filling: Lock = field(default_factory=Lock)


class PagedChunk:
    """A chunk whose checksum is right. The predictors of its runs are decoded; its pages stay compressed. `counts` and
    `firsts`, int64[runs]: the lengths and the first times of its runs. If a chunk is read again, its pages stay
    decompressed while `cache` has room for them. Raises ValueError or struct.error if the bytes are not a valid chunk;
    reading may raise ValueError, too."""

    def __init__(self, data: bytes, counts: Ints, firsts: Ints, cache: DecodedCache | None = None) -> None:
        version, _, _, pages, *sizes = HEADER.unpack_from(data)
        if version != VERSION:
            raise ValueError(f"chunk version {version} is not known to this release")
        self._data = data
        self._counts, self._firsts = np.ascontiguousarray(counts), np.ascontiguousarray(firsts)
        table = np.frombuffer(data, "<u4", pages * PAGE_NUMBERS, HEADER.size).reshape(pages, PAGE_NUMBERS)
        table = table.astype(np.int64)
        self._page_ends = page_ends = np.ascontiguousarray(table[:, 0])
        if not pages or not page_ends[0] or page_ends[-1] != len(counts) or (page_ends[1:] <= page_ends[:-1]).any():
            raise ValueError(f"its pages do not share its {len(counts)} runs")
        columns_at = list(accumulate(sizes, initial=HEADER.size + 4 * table.size))
        self._stream_at = [columns_at[-1], *(columns_at[-1] + table[:, 1:].cumsum()).tolist()]
        if self._stream_at[-1] != len(data):
            raise ValueError(f"its arrays end at byte {self._stream_at[-1]} of {len(data)}")
        self._table, numbers_before = self._predictors([data[at:end] for at, end in pairwise(columns_at)])
        has_numbers = numbers_before[1:] > numbers_before[:-1]
        if ((table[:, 1:] > 0) != has_numbers).any():
            raise ValueError("a page lacks an array, or has one without numbers")
        self._numbers_before: list[list[int]] = numbers_before.tolist()
        self._has_numbers = has_numbers
        self._cache = cache
        self._kept: _Pages | None = None
        self._read_up_to = -1  # the last run of the last read

    @property
    def nbytes(self) -> int:
        arrays = (self._counts, self._firsts, self._page_ends, self._table)
        return len(self._data) + _PAGE_BYTES * len(self._page_ends) + sum(array.nbytes for array in arrays)

    def _predictors(self, columns: list[bytes]) -> tuple[Ints, Ints]:
        """(the table of runs, int64[runs, _COLUMNS]; how many numbers each stream has before each page,
        int64[pages + 1, streams])."""
        runs = len(self._counts)
        kinds = np.empty(runs, np.uint16)
        fill(columns[0], kinds)
        time_kinds, value_kinds = kinds & TIMES_KIND, kinds >> VALUES_SHIFT & VALUES_KIND
        is_integer = value_kinds <= WIDE
        if int(kinds.max()) >= KINDS_MAX or int(value_kinds.max()) > FLOATS:
            raise ValueError("it has runs of a kind that is not known to this release")
        numbers = [
            np.empty(int(np.count_nonzero(has_number)), dtype)
            for has_number, dtype in (
                (time_kinds != SAME, np.int64), (is_integer, np.int64), (is_integer, np.int64),
                (value_kinds == CONSTANT, np.float64),
            )
        ]  # fmt: skip
        for data, out in zip(columns[1:], numbers, strict=True):
            if not len(out) and data:
                raise ValueError("it has numbers of no run")
            fill(data, out)
        slopes, bases, value_slopes, constants = numbers
        table = np.empty((runs, _COLUMNS), np.int64)
        numbers_before = np.zeros((len(self._page_ends) + 1, len(STREAMS)), np.int64)
        if not _survey(
            kinds.astype(np.int64), self._counts, self._page_ends, slopes, bases, value_slopes,
            constants.view(np.int64), table, numbers_before,
        ):  # fmt: skip
            raise ValueError("it has a run with the times of the run before it, which has another number of samples")
        return table, numbers_before

    def counts(self, runs: Ints) -> Ints:
        """int64[k]: the numbers of samples of these runs."""
        return self._counts[runs]

    def read(
        self, runs: Ints, at: Ints, times_ms: Ints, values: NDArray[np.float64], *, keeps_references: bool = False
    ) -> None:
        """Write the samples of `runs`, which ascend, to the arrays; those of runs[i] begin at at[i]. NaNs with the bits
        of references to histograms become ordinary ones unless `keeps_references`."""
        kept = self._kept
        if kept is not None and self._cache is not None:
            self._cache.used(self)
        streams = kept.streams if kept is not None and kept.is_complete else self._filled(runs, kept)
        _write_times(runs, at, self._counts, self._firsts, self._table, *streams[:TIMES_STREAMS], times_ms)
        value_streams, bits = streams[TIMES_STREAMS:], values.view(np.int64)
        _write_values(runs, at, self._counts, self._table, *value_streams, keeps_references, bits, values)

    def decode_all(self) -> tuple[Ints, NDArray[np.float64]]:
        """(times_ms int64[n], values float64[n]) of all runs. Values that look like references are left as they are."""
        at = np.cumsum(self._counts) - self._counts
        samples = int(self._counts.sum())
        times_ms, values = np.empty(samples, np.int64), np.empty(samples)
        self.read(np.arange(len(at)), at, times_ms, values, keeps_references=True)
        return times_ms, values

    def between(self, start_ms: int, end_ms: int) -> Flags:
        """bool[runs]: which runs have a time with start ≤ t ≤ end."""
        runs = np.arange(len(self._counts))
        has_time = np.zeros(len(runs), np.bool_)
        at = np.cumsum(self._counts) - self._counts
        times_ms = np.empty(int(self._counts.sum()), np.int64)
        streams = self._decompressed(runs, TIMES_STREAMS)
        _write_times(runs, at, self._counts, self._firsts, self._table, *streams, times_ms)
        _seek(times_ms, at, self._counts, start_ms, end_ms, has_time)
        return has_time

    def give_back(self) -> None:
        """Drop the decompressed pages; a read in progress keeps them until it ends. See `Borrower`."""
        self._kept = None

    def _filled(self, runs: Ints, kept: _Pages | None) -> list[NDArray]:
        """All streams of the chunk, with the pages that these runs need. A query reads the runs of a chunk in order, so
        a read that goes back comes from another query, and the pages are worth keeping."""
        if kept is None:
            is_again = len(runs) > 0 and int(runs[0]) <= self._read_up_to
            self._read_up_to = int(runs[-1]) if len(runs) else -1
            if self._cache is None or not is_again:
                return self._decompressed(runs, len(STREAMS))
            with uncounted():
                kept = _Pages(self._empty_streams(len(STREAMS)), self._empty_pages())
            self._kept = kept  # before the loan, since another thread may end the loan at once
            if not self._cache.lend(self, sum(stream.nbytes for stream in kept.streams)):
                self._kept = None
        is_missing = np.zeros_like(kept.is_filled)
        if _mark_missing(runs, self._table, kept.is_filled, is_missing):
            with kept.filling:  # the content of a page is undefined while it is decompressed
                is_missing &= ~kept.is_filled
                self._decompress(is_missing, kept.streams)
                kept.is_filled |= is_missing
                kept.is_complete = bool(kept.is_filled.all())
        return kept.streams

    def _decompressed(self, runs: Ints, kinds: int) -> list[NDArray]:
        """The first `kinds` streams of the chunk, filled in the pages that have the times and values of these runs."""
        streams = self._empty_streams(kinds)
        is_wanted = np.zeros((2, len(self._page_ends)), np.bool_)
        if _mark_missing(runs, self._table, np.zeros_like(is_wanted), is_wanted):
            self._decompress(is_wanted, streams)
        return streams

    def _empty_pages(self) -> Flags:
        """bool[2, pages]: which pages have no residuals of times, and which have none of values."""
        has_numbers = self._has_numbers
        return ~np.stack((has_numbers[:, :TIMES_STREAMS].any(axis=1), has_numbers[:, TIMES_STREAMS:].any(axis=1)))

    def _empty_streams(self, kinds: int) -> list[NDArray]:
        return [np.empty(size, dtype) for size, dtype in zip(self._numbers_before[-1][:kinds], STREAMS, strict=False)]

    def _decompress(self, is_wanted: Flags, streams: list[NDArray]) -> None:
        """Fill the wanted pages of these streams."""
        for are_values, page in zip(*(places.tolist() for places in is_wanted.nonzero()), strict=True):
            first, begins, ends = page * len(STREAMS), self._numbers_before[page], self._numbers_before[page + 1]
            for kind in range(TIMES_STREAMS, len(streams)) if are_values else range(TIMES_STREAMS):
                if begins[kind] < ends[kind]:
                    at, end = self._stream_at[first + kind], self._stream_at[first + kind + 1]
                    fill(self._data[at:end], streams[kind][begins[kind] : ends[kind]])


@kernel(types.boolean(INTS, INTS, INTS, INTS, INTS, INTS, INTS, _TABLE, _TABLE), allocates=False)
def _survey(
    kinds: Ints,
    counts: Ints,
    page_ends: Ints,
    slopes: Ints,
    bases: Ints,
    value_slopes: Ints,
    constants: Ints,
    table: Ints,
    numbers_before: Ints,
) -> bool:
    """Fill `table`, the table of runs, and `numbers_before`, how many numbers each stream has before each page. Returns
    False if a run has the times of a run that does not exist or has another length. The arrays of numbers have the
    lengths that follow from `kinds`."""
    in_slopes = in_bases = in_constants = run = 0
    for page in range(len(page_ends)):
        for stream in range(numbers_before.shape[1]):
            numbers_before[page + 1, stream] = numbers_before[page, stream]
        while run < page_ends[page]:
            row, count, kind = table[run], counts[run], kinds[run] & TIMES_KIND
            if kind == SAME:
                if run == 0 or counts[run - 1] != count:
                    return False
                for column in range(_T_PAGE + 1):
                    row[column] = table[run - 1, column]
            else:
                row[_T_KIND], row[_T_WALK], row[_T_AT] = kind, (kinds[run] & TIMES_WALK) != 0, 0
                row[_T_SLOPE], row[_T_PAGE] = slopes[in_slopes], page
                in_slopes += 1
                if kind != EXACT:
                    row[_T_AT] = numbers_before[page + 1, kind - NARROW]
                    numbers_before[page + 1, kind - NARROW] += count
            of_values = kinds[run] >> VALUES_SHIFT
            kind = of_values & VALUES_KIND
            row[_V_KIND], row[_V_WALK], row[_V_PAGE] = kind, (of_values & VALUES_WALK) != 0, page
            row[_V_BASE] = row[_V_SLOPE] = row[_V_AT] = 0
            if kind == CONSTANT:
                row[_V_BASE] = constants[in_constants]
                in_constants += 1
            elif kind != FLOATS:
                row[_V_BASE], row[_V_SLOPE] = bases[in_bases], value_slopes[in_bases]
                in_bases += 1
            if kind in (NARROW, WIDE, FLOATS):
                stream = TIMES_STREAMS + (2 if kind == FLOATS else kind - NARROW)
                row[_V_AT] = numbers_before[page + 1, stream]
                numbers_before[page + 1, stream] += count
            run += 1
    return True


@kernel(types.boolean(INTS, _TABLE_IN, _PAGES_IN, _PAGES), allocates=False)
def _mark_missing(runs: Ints, table: Ints, is_filled: Flags, is_missing: Flags) -> bool:
    """Mark the pages with the times, and with the values, of these runs that are not filled: bool[2, pages] each.
    Returns whether there are any."""
    missing = 0
    for i in range(len(runs)):
        of_times, of_values = table[runs[i], _T_PAGE], table[runs[i], _V_PAGE]
        if not is_filled[0, of_times]:
            is_missing[0, of_times] = True
            missing += 1
        if not is_filled[1, of_values]:
            is_missing[1, of_values] = True
            missing += 1
    return missing > 0


@kernel(types.void(INTS, INTS, INTS, INTS, _TABLE_IN, _NARROW_IN, INTS, types.int64[::1]), allocates=False)
def _write_times(
    runs: Ints, at: Ints, counts: Ints, firsts: Ints, table: Ints, narrow: NDArray[np.int16], wide: Ints, out: Ints
) -> None:
    """Write the times of runs[i] from out[at[i]] on."""
    for i in range(len(runs)):
        run = runs[i]
        kind, slope, stored_at, count = table[run, _T_KIND], table[run, _T_SLOPE], table[run, _T_AT], counts[run]
        run_times = out[at[i] : at[i] + count]
        time = firsts[run]
        if kind == EXACT:
            for j in range(count):
                run_times[j] = time
                time += slope
        elif kind == NARROW:
            _add_up(time, slope, table[run, _T_WALK] != 0, narrow[stored_at : stored_at + count], run_times)
        else:
            _add_up(time, slope, table[run, _T_WALK] != 0, wide[stored_at : stored_at + count], run_times)


@inlined(allocates=False)
def _add_up(base: int, slope: int, walks: bool, residuals: Ints, out: Ints) -> None:
    """Fill `out`, of integers or floats, with the numbers of a run, from its predictor and its residuals."""
    if walks:
        number = base - slope
        for j in range(len(out)):
            number += slope + residuals[j]
            out[j] = number
    else:
        number = base
        for j in range(len(out)):
            out[j] = number + residuals[j]
            number += slope


@kernel(
    types.void(
        INTS, INTS, INTS, _TABLE_IN, _NARROW_IN, INTS, types.Array(types.float64, 1, "C", readonly=True), types.boolean,
        types.int64[::1], types.float64[::1],
    ),
    allocates=False,
)  # fmt: skip
def _write_values(
    runs: Ints,
    at: Ints,
    counts: Ints,
    table: Ints,
    narrow: NDArray[np.int16],
    wide: Ints,
    floats: NDArray[np.float64],
    keeps_references: bool,
    bits: Ints,
    out: NDArray[np.float64],
) -> None:
    """Write the values of runs[i] from out[at[i]] on. `bits`: `out` viewed as int64."""
    for i in range(len(runs)):
        run = runs[i]
        kind, base, slope = table[run, _V_KIND], table[run, _V_BASE], table[run, _V_SLOPE]
        stored_at, walks, count = table[run, _V_AT], table[run, _V_WALK] != 0, counts[run]
        run_values, run_bits = out[at[i] : at[i] + count], bits[at[i] : at[i] + count]
        if kind == NARROW:
            _add_up(base, slope, walks, narrow[stored_at : stored_at + count], run_values)
        elif kind == WIDE:
            _add_up(base, slope, walks, wide[stored_at : stored_at + count], run_values)
        elif kind == EXACT:
            for j in range(count):
                run_values[j] = base
                base += slope
        elif kind == FLOATS:
            stored_floats = floats[stored_at : stored_at + count]
            for j in range(count):
                run_values[j] = stored_floats[j]
        else:
            for j in range(count):
                run_bits[j] = base
        if kind >= CONSTANT and not keeps_references:
            for j in range(count):
                if refers(run_bits[j]):
                    run_bits[j] = _NAN_BITS


@kernel(types.void(INTS, INTS, INTS, types.int64, types.int64, _FLAGS), allocates=False)
def _seek(times: Ints, at: Ints, counts: Ints, start_ms: int, end_ms: int, has_time: Flags) -> None:
    """has_time[r]: whether run r, ascending, has a time with start ≤ t ≤ end."""
    for run in range(len(at)):
        end = at[run] + counts[run]
        first = first_at_least(times, at[run], end, start_ms)
        has_time[run] = first < end and times[first] <= end_ms
