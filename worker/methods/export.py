"""The worker's method for exports: the stored samples of a shard, in slices of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from shared.labels import Symbols
from shared.messages import exchange
from shared.messages.series_export import Cursor, ExportBody, ExportReply
from shared.promql.engine.memory import account_of, bounded
from shared.promql.model import RangeVector, Samples
from shared.wire import Reply, Request, pack, unpack
from worker.methods.method import Method, check
from worker.series.index.lookup import Lookup
from worker.series.index.postings import Ids
from worker.series.part import SeriesPart
from worker.shard import Shard

FIRST_SERIES = 64
"""Series in the first read of a slice, before it is known how many samples they have."""
GROWTH_MAX = 8
"""A read has at most this many times the series of the previous one."""
FEWER_SERIES = 4
"""A read that does not fit is repeated with this fraction (one in 4) of its series."""
SERIES_MAX = 20_000
"""Series of one slice, however few samples they have."""
LABELS_SHARE = 16
"""This fraction (one in 16) of a slice's memory is for label columns; encoding them takes up to eleven times as
much."""
SAMPLE_BYTES = 64
"""Memory of a slice per sample: 16 bytes in what was read, 16 in the joined samples, and temporary arrays."""
TOO_LARGE = 2
"""A read of several series is also dropped if it has more than this many times the samples of a slice."""


def _export(shards: Mapping[int, Shard], request: Request) -> Reply:
    """The next slice of the request's only shard. Raises DeadlineExceeded, OverBudget."""
    ((number, shard),) = shards.items()
    body = unpack(request.body, ExportBody)
    part = shard.series
    require_time = partial(check, request, f"{request.method} ran out of time at shard {number}")
    lookup, ids = part.select(body.selectors, body.start_ms, body.end_ms, require_time)
    ids = ids[part.contents.permanent.rows()[ids] > body.cursor.after]
    with bounded(account_of(body.bytes_max, is_light=False), is_light=False):
        candidates = _fitting(lookup, ids, body.bytes_max // LABELS_SHARE)
        read = SliceReader(part, candidates, body, require_time, is_all=len(candidates) == len(ids))
        samples, series = read.slice()
        request.count(len(samples.values))
        labels = lookup.frame(ids[:series], Symbols(part.symbols))
        shape, frames = exchange.encode(RangeVector(labels, samples, np.zeros(series, dtype=np.bool_)))
    damage = [f"shard {number}: {text}" for text in part.damage(body.start_ms, body.end_ms)]
    return Reply(pack(ExportReply(shape, read.following)), frames, warnings=damage)


def _fitting(lookup: Lookup, ids: Ids, bytes_max: int) -> Ids:
    """As many of the first series as a slice may have by the size of their label columns; at least one."""
    ids = ids[:SERIES_MAX]
    while len(ids) > 1 and lookup.frame_bytes(ids) > bytes_max:
        ids = ids[: len(ids) // 2]
    return ids


class SliceReader:
    """Reads one slice of the series `ids`, which follow the cursor; `is_all`: no other series follow it. `following` is
    where the next slice begins.

    A slice is whole series, or a piece of one series that has too many samples for the memory of a slice. So the memory
    is bounded whatever a shard holds. Raises what `require_time` raises, and MemoryError if even a millisecond of one
    series does not fit.
    """

    def __init__(
        self, part: SeriesPart, ids: Ids, body: ExportBody, require_time: Callable[[], None], *, is_all: bool
    ) -> None:
        self._part = part
        self._ids = ids
        self._body = body
        self._is_all = is_all
        self._require_time = require_time
        self._samples_max = max(1, min(body.samples, body.bytes_max // SAMPLE_BYTES))
        self.following: Cursor | None = None

    def slice(self) -> tuple[Samples, int]:
        """(the samples, the number of leading series that they cover). Series may have no samples."""
        body, ids = self._body, self._ids
        cursor = body.cursor
        if cursor.from_ms is not None and len(ids) and self._permanent(0) == cursor.after + 1:
            return self._piece(cursor.from_ms, cursor.span_ms), 1
        parts, row, size, total = [exchange.joined_samples(())], 0, FIRST_SERIES, 0
        while row < len(ids) and total < self._samples_max:
            self._require_time()
            last = min(row + size, len(ids))
            samples = self._read(ids[row:last], body.start_ms, body.end_ms)
            if samples is None:
                if row:  # return what has been read first, which frees memory
                    break
                if last == 1:
                    return self._piece(body.start_ms, 0), 1
                size = max(1, (last - row) // FEWER_SERIES)
                continue
            parts.append(samples)
            sample_count = len(samples.values) + samples.buckets
            total, row = total + sample_count, last
            size = max(1, min(size * GROWTH_MAX, (self._samples_max - total) * size // max(sample_count, 1)))
        if row < len(ids) or not self._is_all:
            self.following = Cursor(self._permanent(row - 1))
        return exchange.joined_samples(parts), row

    def _read(self, ids: Ids, start_ms: int, end_ms: int) -> Samples | None:
        """The samples of these series; None if they do not fit."""
        try:
            samples = self._part.read(ids, start_ms, end_ms)
        except MemoryError:
            return None
        is_too_much = len(samples.values) + samples.buckets > TOO_LARGE * self._samples_max
        return None if is_too_much and (len(ids) > 1 or end_ms > start_ms) else samples

    def _piece(self, begin_ms: int, span_ms: int) -> Samples:
        """The next piece of the first series from this time on, as long as it fits."""
        ids, end_ms = self._ids[:1], self._body.end_ms
        span_ms = span_ms or end_ms - begin_ms + 1
        samples = exchange.joined_samples(())
        while begin_ms <= end_ms and not len(samples.values):
            self._require_time()
            last_ms = min(end_ms, begin_ms + span_ms - 1)
            if len(self._part.may_have(ids, begin_ms, last_ms)):
                read = self._read(ids, begin_ms, last_ms)
                if read is None:
                    if span_ms == 1:
                        raise MemoryError(f"a millisecond of one series takes more than {self._body.bytes_max} bytes")
                    span_ms = (last_ms - begin_ms + 2) // 2
                    continue
                samples = read
            begin_ms = last_ms + 1
            span_ms *= 1 if len(samples.values) else 2
        if begin_ms <= end_ms:
            self.following = Cursor(self._permanent(0) - 1, begin_ms, span_ms)
        elif len(self._ids) > 1 or not self._is_all:
            self.following = Cursor(self._permanent(0))
        return samples if len(samples.values) else Samples(np.zeros(2, np.int64), samples.timestamps_ms, samples.values)

    def _permanent(self, row: int) -> int:
        return int(self._part.contents.permanent.rows()[self._ids[row]])


METHODS: dict[str, Method] = {"series.export": Method(_export, "query")}
