"""What the values of a day's counters take on the disk, by choice, and what decompressing them then costs: `python -m
loadtest.bench.packing`.

The counters are those of `loadtest.bench.decoding`: Poisson steps at a pace of 1 to 999 a scrape. First the entropy of
these steps, below which no lossless format can be; then, for each level of pcodec, bytes a sample and nanoseconds of
processor time a sample (the least of some turns), in pages of four runs of eight hours, as merged blocks have them, and
in pages of one series; at last the bytes of a format of fixed widths.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from pcodec import ChunkConfig, DeltaSpec, ModeSpec

from worker.series.blocks.compression import compressed, fill

PACES = range(1, 1000)
RUN, RUNS_OF_PAGE, PAGES = 1920, 4, 60
LEVELS = (0, 2, 4, 6, 8, 12)
WIDTH_BLOCK, WIDTH_BITS = 32, 5
"""Numbers that have one width, and the bits that say which."""
TURNS = 25


def entropy_bits(pace: int) -> float:
    """Of a Poisson distribution."""
    counts = np.arange(1, pace + 20 * int(np.sqrt(pace)) + 20)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(counts))))
    logs = np.arange(len(log_factorials)) * np.log(pace) - pace - log_factorials
    return float(-(np.exp(logs) * logs).sum() / np.log(2))


def rests(runs: int, length: int, random: np.random.Generator) -> NDArray[np.int16]:
    """The rests of so many runs, one after another."""
    pace = random.choice(np.array(PACES), (runs, 1))
    return (random.poisson(pace, (runs, length)) - pace).astype(np.int16).ravel()


def measured(pages: Sequence[NDArray[np.int16]], level: int) -> tuple[float, float]:
    """(bytes a sample, nanoseconds a sample)."""
    config = ChunkConfig(compression_level=level, delta_spec=DeltaSpec.no_op(), mode_spec=ModeSpec.classic())
    packed = [compressed(page, config) for page in pages]
    out = np.empty_like(pages[0])
    took = []
    for _ in range(TURNS):
        started = time.thread_time_ns()
        for data in packed:
            fill(data, out)
        took.append(time.thread_time_ns() - started)
    samples = sum(map(len, pages))
    return sum(map(len, packed)) / samples, min(took) / samples


def fixed_width_bytes(pages: Sequence[NDArray[np.int16]]) -> float:
    """Bytes a sample if neighbours are stored in as many bits as the widest of them needs."""
    numbers = np.concatenate(pages).astype(np.int64).reshape(-1, WIDTH_BLOCK)
    widest = np.maximum(numbers, ~numbers).max(axis=1)
    bits = np.where((numbers == 0).all(axis=1), 0, np.ceil(np.log2(widest + 1)) + 1)
    return float((bits * WIDTH_BLOCK + WIDTH_BITS).sum() / 8 / numbers.size)


def main() -> None:
    random = np.random.default_rng(1)
    mixed = [rests(RUNS_OF_PAGE, RUN, random) for _ in range(PAGES)]
    alone = [rests(1, RUNS_OF_PAGE * RUN, random) for _ in range(PAGES)]
    sys.stdout.write(f"entropy: {np.mean([entropy_bits(pace) for pace in PACES]) / 8:.3f} bytes a sample\n")
    for level in LEVELS:
        columns = " ".join(
            f"{size:>8.3f} bytes {took:>6.2f} ns" for size, took in (measured(mixed, level), measured(alone, level))
        )
        sys.stdout.write(f"pcodec, level {level:>2}: {columns}\n")
    sys.stdout.write(f"fixed widths: {fixed_width_bytes(mixed):.3f} bytes, {fixed_width_bytes(alone):.3f} bytes\n")


if __name__ == "__main__":
    main()
