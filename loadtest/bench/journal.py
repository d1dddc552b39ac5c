"""Whether the journal is cheaper in the store's log or in a file of its own: `python -m loadtest.bench.journal`.

The same records both times, as a commit writes them: some samples of a shard as packed columns, 20 bytes a sample.
The file has them one after another behind length, sequence number and xxh64 checksum, written with one `write` each;
the store has them as rows of the family `journal`, a batch each. Then the disk is waited for, after every record as a
lone writer has it, or after every eighth as concurrent ones do. Medians and 99th percentiles are of the clock;
processor time is that of the whole process, the store's work in the background included.
"""

from __future__ import annotations

import os
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash

from worker.storage import Store

RECORD_SAMPLES = (250, 2_000)
SAMPLE_BYTES = 20
RECORDS = 2_000
SYNCED = 200
"""Records that are synced; the others are only written."""
_HEAD = struct.Struct("<IQQ")
_KEY = struct.Struct(">Q")

Put = Callable[[int, bytes], None]
Sync = Callable[[], None]


def measure(what: str, record: bytes, put: Put, sync: Sync) -> None:
    written, synced = [], []
    worked = time.process_time()
    for number in range(RECORDS):
        started = time.perf_counter()
        put(number, record)
        written.append(time.perf_counter() - started)
    sync()
    worked = time.process_time() - worked
    for every in (1, 8):
        waits = []
        for number in range(SYNCED * every):
            put(RECORDS + number, record)
            if number % every == every - 1:
                started = time.perf_counter()
                sync()
                waits.append(time.perf_counter() - started)
        synced.append(np.percentile(waits, [50, 99]) * 1e3)
    sys.stdout.write(
        f"{what:<8} {len(record):>6} bytes: write {np.median(written) * 1e9:>8.0f} ns a record "
        f"(p99 {np.percentile(written, 99) * 1e9:.0f}), {worked / RECORDS * 1e9:.0f} of processor time; "
        f"fsync after each {synced[0][0]:.2f} ms, p99 {synced[0][1]:.2f}; "
        f"after eight {synced[1][0]:.2f} ms, p99 {synced[1][1]:.2f}\n"
    )


def in_store(directory: Path, record: bytes) -> None:
    store = Store(directory / "store")

    def put(number: int, value: bytes) -> None:
        batch = store.batch()
        batch.put("journal", _KEY.pack(number), value)
        store.write(batch)

    measure("store", record, put, store.sync)
    store.close()


def in_file(directory: Path, record: bytes) -> None:
    file = os.open(directory / "file", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def put(number: int, value: bytes) -> None:
        os.writev(file, [_HEAD.pack(len(value), number, xxhash.xxh64_intdigest(value)), value])

    measure("file", record, put, lambda: os.fdatasync(file))
    os.close(file)


if __name__ == "__main__":
    for samples in RECORD_SAMPLES:
        noise = np.random.default_rng(1).bytes(samples * SAMPLE_BYTES)
        for _ in range(2):
            for work in (in_store, in_file):
                with tempfile.TemporaryDirectory() as name:
                    work(Path(name), noise)
