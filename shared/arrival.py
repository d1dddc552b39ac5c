"""A shard's part of a remote-write request as columns in one frame: written by the coordinator, which has walked and
checked the request, so that a worker reads it without looking at a byte of it.

Words of 64 bits: mark, series n, samples m, label bytes b; n hashes; n + 1 offsets of the label bytes; n sample counts;
m times; m values; the label bytes of all series, padded with zeros to a whole word.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared import remote_write_walk
from shared.errors import Internal
from shared.wire import Frame

MARK = int.from_bytes(b"arrival1", "little")
HEADER_WORDS = 4
_HEADER = struct.Struct(f"={HEADER_WORDS}q")


@dataclass(frozen=True, slots=True)
class Arrival:
    """Run i is counts[i] samples of the series with canonical label bytes data[starts[i]:ends[i]] and xxh64 hashes[i];
    `times_ms` int64[samples] and `values` float64[samples] are the runs' one after another."""

    data: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    counts: NDArray[np.int64]
    times_ms: NDArray[np.int64]
    values: NDArray[np.float64]


def parse(frame: Frame) -> Arrival:
    """What `divide` wrote for one shard. Raises Internal if it is anything else."""
    size = memoryview(frame).nbytes
    if size % 8 == 0 and size >= 8 * HEADER_WORDS:
        # A copy: received frames may lie at any address, and what is kept must not keep the whole message.
        words = np.frombuffer(frame, dtype=np.int64).copy()
        mark, series, samples, label_bytes = _HEADER.unpack_from(frame)
        if mark == MARK and len(words) == _words(series, samples, label_bytes):
            offsets = HEADER_WORDS + series
            counts = offsets + series + 1
            times = counts + series
            values = times + samples
            labels = values + samples
            if words[offsets] == 0 and words[counts - 1] == label_bytes:
                return Arrival(
                    words[labels:].view(np.uint8),
                    words[offsets : counts - 1],
                    words[offsets + 1 : counts],
                    words[HEADER_WORDS:offsets].view(np.uint64),
                    words[counts:times],
                    words[times:values],
                    words[values:labels].view(np.float64),
                )
    raise Internal(f"a frame of {size} bytes for series.write is not in the form of {__name__}")


def joined(arrivals: Sequence[Arrival]) -> Arrival:
    """The runs of all, one arrival after the other."""
    shifts = np.cumsum([0, *(len(arrival.data) for arrival in arrivals)]).tolist()
    return Arrival(
        np.concatenate([arrival.data for arrival in arrivals]),
        np.concatenate([arrival.starts + shift for arrival, shift in zip(arrivals, shifts, strict=False)]),
        np.concatenate([arrival.ends + shift for arrival, shift in zip(arrivals, shifts, strict=False)]),
        np.concatenate([arrival.hashes for arrival in arrivals]),
        np.concatenate([arrival.counts for arrival in arrivals]),
        np.concatenate([arrival.times_ms for arrival in arrivals]),
        np.concatenate([arrival.values for arrival in arrivals]),
    )


def divide(
    body: NDArray[np.uint8],
    table: NDArray[np.int64],
    hashes: NDArray[np.uint64],
    rows: NDArray[np.int64],
    shards: int,
) -> Iterator[tuple[int, Frame]]:
    """(shard, frame) of every shard that has some of the `rows` (int64[n], PLAIN ones with samples) of a walk."""
    places = (hashes[rows] % np.uint64(shards)).astype(np.int64)
    totals = np.zeros((shards, 3), dtype=np.int64)
    order = np.empty(len(rows), dtype=np.int64)
    remote_write_walk.sort_by_place(table, rows, places, totals, order)
    sizes = [_words(*total) if total[0] else 0 for total in totals.tolist()]
    words = np.empty(sum(sizes), dtype=np.int64)
    remote_write_walk.fill_columns(
        body, table, hashes, order, totals, MARK, words, words.view(np.float64), words.view(np.uint8)
    )
    view = memoryview(words.view(np.uint8).data)
    at = 0
    for shard, size in enumerate(sizes):
        if size:
            yield shard, view[8 * at : 8 * (at + size)]
            at += size


def _words(series: int, samples: int, label_bytes: int) -> int:
    return HEADER_WORDS + 3 * series + 1 + 2 * samples + (label_bytes + 7) // 8
