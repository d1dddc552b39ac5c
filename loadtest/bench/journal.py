"""Where a commit of samples is cheapest to write and to sync: `python -m loadtest.bench.journal`.

A commit has a record for each of some shards: samples as packed columns, 20 bytes each. It is written and synced

- to the stores: a row of family `series` in the RocksDB of each shard, whose syncs wait for the disk side by side;
- to a file: all records with one gathering write behind a checksum each, at the end of a file that grows;
- to the log: `worker.storage.wal`, which allocates its files and fills those that wait with zeros.

Medians and 99th percentiles are wall-clock time; CPU time is that of the whole process, including the store's
background work. The three take turns, twice each.

After that, small and large commits follow one another while files of the log are prepared, as in the first minute of
an installation: with zeros written without a pause, as the log does it, and without zeros.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import xxhash

from worker.storage.rows.store import Store
from worker.storage.wal import files
from worker.storage.wal.log import SERIES, WriteAheadLog

SHARDS = 4
RECORD_SAMPLES = (60, 250, 2_000)
SAMPLE_BYTES = 20
COMMITS = 500
WARM_UP = 50
"""Commits before those that count: the log begins with a small file and goes on in larger ones."""

PREPARING_COMMITS, PREPARING_BYTES, PAUSE_S = 1_500, (500, 25_000), 0.002
PAUSES_S = {"without a pause": 0.0, "with pauses": files.ZEROS_EVERY_S, "none": 3600.0}

Commit = Callable[[int, bytes], None]


def measure(what: str, record: bytes, commit: Commit) -> None:
    for number in range(WARM_UP):
        commit(number, record)
    waits = []
    worked = time.process_time()
    for number in range(WARM_UP, WARM_UP + COMMITS):
        started = time.perf_counter()
        commit(number, record)
        waits.append(time.perf_counter() - started)
    worked = time.process_time() - worked
    median, last = np.percentile(waits, [50, 99]) * 1e6
    sys.stdout.write(
        f"{what:<7} {SHARDS} records of {len(record):>6} bytes: {worked / COMMITS * 1e6:>5.0f} µs of CPU time a "
        f"commit, {median:>5.0f} µs until it is on the disk (p99 {last:.0f})\n"
    )


def in_stores(directory: Path, record: bytes) -> None:
    stores = [Store(directory / f"store-{number}") for number in range(SHARDS)]
    with ThreadPoolExecutor(SHARDS) as pool:

        def commit(number: int, value: bytes) -> None:
            for store in stores:
                batch = store.batch()
                batch.put("series", number.to_bytes(8, "big"), value)
                store.write(batch)
            for wait in [pool.submit(store.sync) for store in stores]:
                wait.result()

        measure("stores", record, commit)
    for store in stores:
        store.close()


def in_file(directory: Path, record: bytes) -> None:
    file = os.open(directory / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def commit(number: int, value: bytes) -> None:
        os.writev(file, [piece for _ in range(SHARDS) for piece in (xxhash.xxh64_digest(value), value)])
        os.fdatasync(file)

    measure("file", record, commit)
    os.close(file)


def in_log(directory: Path, record: bytes) -> None:
    log = WriteAheadLog(directory / "wal").open()
    streams = [log.stream(number, SERIES) for number in range(SHARDS)]

    def commit(number: int, value: bytes) -> None:
        positions = log.write([(stream, [value]) for stream in streams])
        log.sync()
        if number % 100 == 0:  # blocks have taken over what is older
            for stream in streams:
                stream.release(positions[0])

    measure("log", record, commit)
    log.close()


def while_files_are_prepared(directory: Path, record: bytes, zeros: str) -> None:
    log = WriteAheadLog(directory / "wal").open()
    streams = [log.stream(number, SERIES) for number in range(SHARDS)]
    waits, files.ZEROS_EVERY_S = [], PAUSES_S[zeros]
    began = time.perf_counter()
    for _ in range(PREPARING_COMMITS):
        started = time.perf_counter()
        log.write([(stream, [record]) for stream in streams])
        log.sync()
        waits.append(time.perf_counter() - started)
        time.sleep(PAUSE_S)
    took_s = time.perf_counter() - began
    log.close()
    median, late, last = np.percentile(waits, [50, 99, 100]) * 1e3
    sys.stdout.write(
        f"log, {SHARDS} records of {len(record):>6,} bytes, zeros {zeros:<15}: {median:.2f} ms until it is on the disk "
        f"(p99 {late:.1f}, longest {last:.1f}), {PREPARING_COMMITS / took_s:.0f} commits/s\n"
    )


if __name__ == "__main__":
    for samples in RECORD_SAMPLES:
        noise = np.random.default_rng(1).bytes(samples * SAMPLE_BYTES)
        for _ in range(2):
            for work in (in_stores, in_file, in_log):
                with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
                    work(Path(name), noise)
    for size in PREPARING_BYTES:
        noise = np.random.default_rng(1).bytes(size)
        for _ in range(2):
            for zeros in PAUSES_S:
                with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
                    while_files_are_prepared(Path(name), noise, zeros)
