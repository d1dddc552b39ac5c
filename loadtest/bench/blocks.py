"""The cost of blocks of samples, in process: `python -m loadtest.bench.blocks [series]`.

One shard with a real store in a temporary directory: how fast samples are sealed, how many bytes they take, how fast
they are read, how long writes and reads wait meanwhile, how fast a shard starts, and the same bytes put into the store
instead of files. Rates of writing and reading blocks are per second of one core's CPU time; waits and starts are
wall-clock time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coordinator.series import remote_write
from loadtest.bench.ingest import START_MS, bodies
from loadtest.harness.remote_write_bodies import UNLIMITED
from shared.settings import Settings
from worker.series.blocks.block import Block
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.writer import BlockWriter
from worker.series.head import NEVER
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart
from worker.series.pieces import join
from worker.series.services import SeriesServices
from worker.series.writing import write_to
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal.log import SERIES, WriteAheadLog

SCRAPE_MS = 15_000
WINDOW_SAMPLES = 480
READ_SERIES = 1024


def show(what: str, figure: float, unit: str) -> None:
    sys.stdout.write(f"{what:<64} {figure:>10.2f} {unit}\n")


def kinds(series: int, random: np.random.Generator) -> dict[str, tuple[NDArray, NDArray]]:
    """Name → (times int64[series, n], values float64[series, n]) of two hours."""
    n = WINDOW_SAMPLES
    regular = START_MS + random.integers(0, SCRAPE_MS, (series, 1)) + SCRAPE_MS * np.arange(n)
    jittered = regular + random.integers(-3, 4, (series, n))
    counter = np.cumsum(random.integers(0, 200, (series, n)), axis=1).astype(float)
    walk = 50 + np.cumsum(random.normal(0, 0.5, (series, n)), axis=1)
    slow = np.floor(np.cumsum(random.random((series, n)) < 0.05, axis=1).astype(float))
    return {
        "noisy integer counter, regular scrapes": (regular, counter),
        "noisy integer counter, scrapes ± 3 ms": (jittered, counter),
        "counter that rarely moves": (regular, slow),
        "gauge of two decimals": (regular, np.round(walk, 2)),
        "gauge of full precision": (regular, walk),
        "constant": (regular, np.full((series, n), 1.0)),
    }


def codecs(directory: Path, series: int) -> None:
    ids, counts = np.arange(series), np.full(series, WINDOW_SAMPLES)
    for name, (times, values) in kinds(series, np.random.default_rng(1)).items():
        writer = BlockWriter(LocalObjects(directory), 1)
        started = time.thread_time()
        for first in range(0, series, 500):
            own = slice(first, first + 500)
            writer.add(ids[own], counts[own], times[own].ravel(), values[own].ravel())
        row = writer.finish()
        took = time.thread_time() - started
        show(f"{name}: size", row.size_bytes / row.samples, "bytes a sample")
        show(f"{name}: write", row.samples / took / 1e6, "M samples/s")
        for what, cache in (("decode", DecodedCache(0)), ("from the cache", DecodedCache(1 << 40))):
            block = Block(row, LocalObjects(directory), cache)
            for _ in range(2):
                started = time.thread_time()
                for first in range(0, series, READ_SERIES):
                    own_ids = ids[first : first + READ_SERIES]
                    join(block.pieces(own_ids, 0, NEVER - 1), len(own_ids))
                took = time.thread_time() - started
            show(f"{name}: read, {what}", row.samples / took / 1e6, "M samples/s")


def places(directory: Path) -> None:
    """A file written once against rows of the store, of like bytes: random ones, as compressed chunks are."""
    chunk, count = np.random.default_rng(2).bytes(60_000), 1000
    written = _written_bytes()
    started = time.perf_counter()
    with open(directory / "file", "wb") as file:
        for _ in range(count):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    show("60 MB of chunks: one file and its fsync", (time.perf_counter() - started) * 1000, "ms")
    show("… written to the device", (_written_bytes() - written) / 60e6, "bytes a byte")
    store = Store(directory / "rows")
    written = _written_bytes()
    started = time.perf_counter()
    for number in range(count):
        batch = store.batch()
        batch.put("blocks", number.to_bytes(8, "big"), chunk)
        store.write(batch)
    store.sync()
    show("60 MB of chunks: rows of the store and its sync", (time.perf_counter() - started) * 1000, "ms")
    store.close()
    show("… written to the device", (_written_bytes() - written) / 60e6, "bytes a byte")


def _written_bytes() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])


def shard(directory: Path, series: int, rounds: int) -> None:
    settings = Settings(shards=1, workers=1, block_window_ms=7_200_000)
    part, _, close = opened(directory, settings)
    part._upkeep.sealing.tick = lambda now_ms: None  # type: ignore[method-assign]  # sealing is timed here
    for at in range(rounds):
        for body in bodies(series, at):
            write_to(part, remote_write.split(body, 1, UNLIMITED).parts[0], 60.0)
    stop = threading.Event()
    waits: dict[str, list[float]] = {"write": [], "read": []}
    later = [
        remote_write.split(body, 1, UNLIMITED).parts[0]
        for at in range(rounds, rounds + 3)
        for body in bodies(min(series, 4000), at)
    ]

    def measure(name: str) -> None:
        number = 0
        while not stop.is_set():
            started = time.perf_counter()
            if name == "write":
                write_to(part, later[number % len(later)], 60.0)
            else:
                part.read(np.arange(number * 100 % series, min(number * 100 % series + 100, series)), 0, NEVER - 1)
            waits[name].append(time.perf_counter() - started)
            number += 1
            time.sleep(0.001)

    threads = [threading.Thread(target=measure, args=(name,)) for name in waits]
    for thread in threads:
        thread.start()
    time.sleep(1.0)
    before = {name: (max(own), float(np.percentile(own, 99))) for name, own in waits.items()}
    for own in waits.values():
        own.clear()
    samples = part.counts()["head_samples"]
    started, worked = time.perf_counter(), time.thread_time()
    part._upkeep.sealing._seal(NEVER)
    took, worked = time.perf_counter() - started, time.thread_time() - worked
    stop.set()
    for thread in threads:
        thread.join()
    show(f"seal {series} series × {rounds}, of one core's time", samples / worked / 1e6, "M samples/s")
    show(f"seal {series} series × {rounds}, of the clock", samples / took / 1e6, "M samples/s")
    show("… bytes", part.counts()["block_bytes"] / part.contents.layers.samples, "bytes a sample")
    for name, own in waits.items():
        show(f"longest {name} before, while sealing", before[name][0] * 1000, f"ms, {max(own) * 1000:.2f} ms")
        p99 = float(np.percentile(own, 99)) * 1000
        show(f"99th percentile of a {name} before, while sealing", before[name][1] * 1000, f"ms, {p99:.2f} ms")
    close()
    started = time.perf_counter()
    part, _, close = opened(directory, settings)
    show(f"start with {series} series, all sealed but a tail", (time.perf_counter() - started) * 1000, "ms")
    close()


def opened(directory: Path, settings: Settings) -> tuple[SeriesPart, Store, Callable[[], None]]:
    store = Store(directory / "store")
    log = WriteAheadLog(directory / "wal").open()
    part = SeriesPart(
        store, SeriesServices(settings, TextTable()), LocalObjects(directory / "blocks"), log.stream(0, SERIES)
    )
    part.load()

    def close() -> None:
        part.close()
        store.close()
        log.close()

    return part, store, close


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        codecs(Path(name), 10_000)
        places(Path(name))
    with tempfile.TemporaryDirectory() as name:
        shard(Path(name), int(sys.argv[1]) if len(sys.argv) > 1 else 50_000, 20)
