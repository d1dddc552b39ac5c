"""Which worker's write-ahead log has which shards, and what happens to the records when that changes."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from shared.durable import write_atomically
from shared.errors import ConfigError
from shared.telemetry import event
from worker.wal import files
from worker.wal.log import WriteAheadLog

NAME = "wal"
"""Of the directory in the data directory."""
_WORKERS = "workers"


def directory_of(base: Path, worker: int) -> Path:
    """Where the log of a worker lies: that of the shards `worker`, `worker + workers`, … ."""
    return base / f"{worker:04d}"


def arrange(base: Path, workers: int) -> None:
    """Have the logs in `base` laid out for so many workers. Call while none of them runs.

    Records of shards that have another worker now are written anew beside, and the directories exchanged; a crash
    leaves the one or the other. Raises ConfigError when the directory cannot be used, Unavailable when a worker of a
    former start still has its log.
    """
    new, old = base.with_name(base.name + ".new"), base.with_name(base.name + ".old")
    try:
        if new.exists() and not base.exists():
            os.rename(new, base)
        for leftover in (new, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        if not base.exists():
            base.mkdir(parents=True)
            write_atomically(base / _WORKERS, str(workers).encode())
            return
        before = int((base / _WORKERS).read_text())
        if before == workers:
            return
        _write_anew(base, before, new, workers)
        os.rename(base, old)
        os.rename(new, base)
        shutil.rmtree(old)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{base}, the write-ahead log, cannot be used: {error}") from error
    event(logging.INFO, "write-ahead log laid out anew", workers=workers, before=before)


def _write_anew(base: Path, before: int, new: Path, workers: int) -> None:
    logs = [WriteAheadLog(directory_of(new, worker)).open() for worker in range(workers)]
    for worker in range(before):
        directory = directory_of(base, worker)
        if not directory.exists():
            continue
        descriptor = files.lock(directory)
        for path in files.paths_of(directory):
            for found, payload in files.read(path):
                logs[found.shard % workers].stream(found.shard, found.area).write([payload])
        os.close(descriptor)
    for log in logs:
        log.sync()
        log.close()
    write_atomically(new / _WORKERS, str(workers).encode())
