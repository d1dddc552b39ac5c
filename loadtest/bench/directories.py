"""What reading many series costs if the directories of their blocks do not fit in the cache together:
`python -m loadtest.bench.directories`.

The share of one of four shards in a million series: 250,000 series of one metric, in seven blocks with 60 samples of
each. All series are read in ascending order, some at a time, as a query reads them: with a cache of 64 MB, the default
of such a shard, with and without the extracts of the directories (`worker.series.blocks.extracts`), and with a cache
that has room for everything. In one process, without the index and the engine; wall-clock seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import numpy as np

from worker.series.blocks import block
from worker.series.blocks.block import Block, BlockRow
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.directory import decode_directory
from worker.series.blocks.extracts import Extracts
from worker.series.blocks.layers import Layers
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.objects import LocalObjects

SERIES, BLOCKS, SAMPLES = 250_000, 7, 60
STEP_MS = 15_000
WRITTEN_AT_ONCE = 1_000
READ_AT_ONCE = (312, 22)
"""A query reads about 131,072 samples at a time: so many series of 420 samples, or of a day at 15 s."""
SHARE_WITHOUT = 50
"""Without extracts, one series of so many is read."""
USUAL_BYTES, ROOMY_BYTES = 64 << 20, 2 << 30


def write(objects: LocalObjects) -> list[BlockRow]:
    random, rows = np.random.default_rng(1), []
    for number in range(BLOCKS):
        writer = BlockWriter(objects, number + 1)
        times_ms = np.tile(STEP_MS * (np.arange(SAMPLES) + number * SAMPLES), WRITTEN_AT_ONCE)
        for first in range(0, SERIES, WRITTEN_AT_ONCE):
            values = random.integers(0, 100, len(times_ms)).astype(np.float64)
            counts = np.full(WRITTEN_AT_ONCE, SAMPLES)
            writer.add(np.arange(first, first + WRITTEN_AT_ONCE), counts, times_ms, values)
        rows.append(writer.finish())
    return rows


def read(blocks: Sequence[Block], series: int, at_once: int, *, with_extracts: bool) -> tuple[float, int]:
    """(seconds that the first `series` series take, how many directories were decoded)."""
    layers, ids = Layers(blocks=tuple(blocks)), np.arange(SERIES)
    end_ms = STEP_MS * SAMPLES * BLOCKS
    extracts = Extracts(ids, lambda wanted: wanted, 0, end_ms) if with_extracts else None
    with mock.patch.object(block, "decode_directory", wraps=decode_directory) as decodings:
        began_s = time.perf_counter()
        for first in range(0, series, at_once):
            wanted = ids[first : min(first + at_once, series)]
            samples = join(layers.pieces(wanted, wanted, 0, end_ms, extracts), len(wanted))
            assert len(samples.values) == len(wanted) * BLOCKS * SAMPLES
        return time.perf_counter() - began_s, decodings.call_count


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        objects = LocalObjects(Path(directory))
        rows = write(objects)
        for at_once in READ_AT_ONCE:
            for cache, bytes_max, with_extracts, series in (
                ("64 MB, with extracts", USUAL_BYTES, True, SERIES),
                ("64 MB, without", USUAL_BYTES, False, SERIES // SHARE_WITHOUT),
                ("2 GB, without", ROOMY_BYTES, False, SERIES),
            ):
                cached = DecodedCache(bytes_max)
                blocks = [Block(row, objects, cached) for row in rows]
                took_s, decoded = read(blocks, series, at_once, with_extracts=with_extracts)
                sys.stdout.write(
                    f"{at_once:>4} series a read, cache {cache:<21} {series:>7,} series: {took_s:6.2f} s, "
                    f"{decoded:>6,} directories decoded\n"
                )


if __name__ == "__main__":
    main()
