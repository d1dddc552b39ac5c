"""The cost of a sample from blocks to a query result, by stage: `python -m loadtest.bench.decoding [series]`.

A day of counters, every 15 s, in three blocks of eight hours. For each stage: nanoseconds of CPU time per sample, the
minimum of several rounds. "All of these" are all stages in reads as large as a query's; "the answer" is that of `sum by
(job) (rate(m[5m]))` over the day, in steps of 300 s.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from shared.labels import LabelFrame, Symbols
from shared.process.allocator import keep_pages
from shared.promql.ast import Aggregate, Matcher
from shared.promql.engine.context import EvalContext
from shared.promql.engine.evaluator import evaluate_partial
from shared.promql.engine.scan import READ_SAMPLES
from shared.promql.model import Grid, Samples
from shared.promql.parser import parse
from worker.series.blocks.block import Block
from worker.series.blocks.cache import Borrower, DecodedCache
from worker.series.blocks.chunk_layout import STREAMS
from worker.series.blocks.paged_chunk import PagedChunk
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import Part, join
from worker.storage.objects import LocalObjects

SERIES, SAMPLES, BLOCKS, STEP_MS = 1250, 5760, 3, 15_000
START_MS = 1_700_000_000_000
TURNS = 5
WRITTEN_SERIES = 20
QUERY = "sum by (job) (rate(m[5m]))"
GRID = Grid(START_MS + 7000, START_MS + 7000 + 86_400_000, 300_000)


class WithoutLoans(DecodedCache):
    """A cache without room for decompressed pages."""

    def lend(self, borrower: Borrower, size_bytes: int) -> bool:
        return False


NOTHING = "nothing cached"
CACHES: dict[str, Callable[[], DecodedCache]] = {
    NOTHING: lambda: DecodedCache(0),
    "chunks cached": lambda: WithoutLoans(1 << 30),
    "pages kept": lambda: DecodedCache(1 << 30),
}


class BlockSource:
    """The series of some blocks; implements `model.Source` and `model.SeriesSelection`."""

    def __init__(self, blocks: Sequence[Block], series: int) -> None:
        self.blocks = blocks
        self._series = series

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, symbols: Symbols) -> BlockSource:
        sets = [(("__name__", "m"), ("job", f"job-{number % 10}")) for number in range(self._series)]
        self.labels = LabelFrame.of(sets, symbols)
        return self

    def read(self, first: int, last: int) -> Samples:
        ids = np.arange(first, last)
        parts: list[Part] = []
        for block in self.blocks:
            parts += block.pieces(ids, START_MS - 1, START_MS + (1 << 40))
        return join(parts, len(ids))

    def read_all(self) -> None:
        """Read all series, as many at a time as a query does."""
        step = max(1, READ_SAMPLES // SAMPLES)
        for first in range(0, self._series, step):
            self.read(first, min(first + step, self._series))


def written(directory: Path, series: int) -> tuple[list[Block], float]:
    """(the blocks, without a cache; the CPU time of writing them in seconds)."""
    random = np.random.default_rng(1)
    pace, length = random.integers(1, 1000, (series, 1)), SAMPLES // BLOCKS
    values = random.integers(0, 1_000_000, (series, 1)) + np.cumsum(random.poisson(pace, (series, SAMPLES)), axis=1)
    blocks, write_s = [], 0.0
    for first in range(0, SAMPLES, length):
        times = START_MS + STEP_MS * np.arange(first, first + length)
        writer = BlockWriter(LocalObjects(directory), 1)
        for begin in range(0, series, WRITTEN_SERIES):
            series_values = values[begin : begin + WRITTEN_SERIES, first : first + length].astype(np.float64)
            ids = np.arange(begin, begin + len(series_values))
            counts = np.full(len(ids), length)
            started = time.thread_time()
            writer.add(ids, counts, np.tile(times, len(ids)), series_values.ravel())
            write_s += time.thread_time() - started
        blocks.append(Block(writer.finish(), LocalObjects(directory), DecodedCache(0)))
    return blocks, write_s


def least_ns(work: Callable[[], object], samples: int) -> float:
    """Nanoseconds of this thread's CPU time per sample: the minimum of several rounds."""
    elapsed_s = []
    for _ in range(TURNS):
        started = time.thread_time()
        work()
        elapsed_s.append(time.thread_time() - started)
    return min(elapsed_s) / samples * 1e9


def stages(blocks: list[Block]) -> dict[str, Callable[[], object]]:
    """Stage → a function that does it for all chunks of the blocks."""
    chunks = [(block, block.directory(), n) for block in blocks for n in range(len(block.directory().chunk_hashes))]
    opened = [cast(PagedChunk, block.opened(directory, n)) for block, directory, n in chunks]
    samples_max = max(int(chunk._counts.sum()) for chunk in opened)
    times_ms, values = np.empty(samples_max, np.int64), np.empty(samples_max)

    def read_all() -> None:
        for chunk in opened:
            at = np.cumsum(chunk._counts) - chunk._counts
            chunk.read(np.arange(len(at)), at, times_ms, values)

    def decompress(chunk: PagedChunk) -> list[NDArray]:
        return chunk._decompressed(np.arange(len(chunk._counts)), len(STREAMS))

    return {
        "directories": lambda: [block.directory() for block in blocks],
        "read from the file, and check": lambda: [block._chunk_bytes(directory, n) for block, directory, n in chunks],
        "… and read the predictors of the runs": lambda: [block.opened(directory, n) for block, directory, n in chunks],
        "decompress the residuals": lambda: [decompress(chunk) for chunk in opened],
        "… and add them up": read_all,
    }


def main() -> None:
    keep_pages()
    series = int(sys.argv[1]) if len(sys.argv) > 1 else SERIES
    samples = series * SAMPLES
    with tempfile.TemporaryDirectory() as name:
        blocks, write_s = written(Path(name), series)
        size = sum(block.row.size_bytes for block in blocks)
        sys.stdout.write(f"{size / samples:.3f} bytes a sample\n{'written':<50} {write_s / samples * 1e9:>7.2f} ns\n")
        for stage, work in stages(blocks).items():
            sys.stdout.write(f"{stage:<50} {least_ns(work, samples):>7.2f} ns\n")
        for what, cache in CACHES.items():
            source = BlockSource([Block(block.row, block._objects, cache()) for block in blocks], series)
            show(f"all of these, {what}", least_ns(source.read_all, samples))
            if what != NOTHING:
                show(f"the answer, {what}", least_ns(partial(answer, source), samples))


def show(stage: str, sample_ns: float) -> None:
    sys.stdout.write(f"{stage:<50} {sample_ns:>7.2f} ns, {1e3 / sample_ns:.0f} M samples/s\n")


def answer(source: BlockSource) -> None:
    symbols, node = Symbols(), parse(QUERY)
    assert isinstance(node, Aggregate)
    context = EvalContext(source, symbols, GRID, 300_000, time.monotonic() + 60.0, 50_000_000)
    evaluate_partial(node, GRID, context)


if __name__ == "__main__":
    main()
