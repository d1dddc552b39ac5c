"""The disk space of a day's counters in different formats, and the cost of decompressing them: `python -m
loadtest.bench.packing`.

The counters are those of `loadtest.bench.decoding`: Poisson steps with a mean of 1 to 999 per scrape. Prints the
entropy of these steps, below which no lossless format can be; for each level of pcodec, bytes and nanoseconds of CPU
time per sample (the minimum of several rounds), in pages of four runs of eight hours, as merged blocks have them, and
in pages of one series; and the bytes of a format of fixed widths.
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
"""The count of numbers that share a width, and the bits that encode the width."""
TURNS = 25


def entropy_bits(pace: int) -> float:
    """The entropy of a Poisson distribution with this mean."""
    counts = np.arange(1, pace + 20 * int(np.sqrt(pace)) + 20)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(counts))))
    logs = np.arange(len(log_factorials)) * np.log(pace) - pace - log_factorials
    return float(-(np.exp(logs) * logs).sum() / np.log(2))


def residuals(runs: int, length: int, random: np.random.Generator) -> NDArray[np.int16]:
    """int16[runs * length]: the residuals of the runs, concatenated."""
    pace = random.choice(np.array(PACES), (runs, 1))
    return (random.poisson(pace, (runs, length)) - pace).astype(np.int16).ravel()


def measured(pages: Sequence[NDArray[np.int16]], level: int) -> tuple[float, float]:
    """(bytes per sample, nanoseconds of CPU time per sample)."""
    config = ChunkConfig(compression_level=level, delta_spec=DeltaSpec.no_op(), mode_spec=ModeSpec.classic())
    packed = [compressed(page, config) for page in pages]
    out = np.empty_like(pages[0])
    elapsed_ns = []
    for _ in range(TURNS):
        started = time.thread_time_ns()
        for data in packed:
            fill(data, out)
        elapsed_ns.append(time.thread_time_ns() - started)
    samples = sum(map(len, pages))
    return sum(map(len, packed)) / samples, min(elapsed_ns) / samples


def fixed_width_bytes(pages: Sequence[NDArray[np.int16]]) -> float:
    """Bytes per sample if each WIDTH_BLOCK neighbours are stored with as many bits as the widest of them needs."""
    numbers = np.concatenate(pages).astype(np.int64).reshape(-1, WIDTH_BLOCK)
    widest = np.maximum(numbers, ~numbers).max(axis=1)
    bits = np.where((numbers == 0).all(axis=1), 0, np.ceil(np.log2(widest + 1)) + 1)
    return float((bits * WIDTH_BLOCK + WIDTH_BITS).sum() / 8 / numbers.size)


def main() -> None:
    random = np.random.default_rng(1)
    mixed = [residuals(RUNS_OF_PAGE, RUN, random) for _ in range(PAGES)]
    alone = [residuals(1, RUNS_OF_PAGE * RUN, random) for _ in range(PAGES)]
    sys.stdout.write(f"entropy: {np.mean([entropy_bits(pace) for pace in PACES]) / 8:.3f} bytes a sample\n")
    for level in LEVELS:
        columns = " ".join(
            f"{size:>8.3f} bytes {sample_ns:>6.2f} ns"
            for size, sample_ns in (measured(mixed, level), measured(alone, level))
        )
        sys.stdout.write(f"pcodec, level {level:>2}: {columns}\n")
    sys.stdout.write(f"fixed widths: {fixed_width_bytes(mixed):.3f} bytes, {fixed_width_bytes(alone):.3f} bytes\n")


if __name__ == "__main__":
    main()
