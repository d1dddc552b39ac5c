"""Which worker's write-ahead log has which shards, and what happens to the records when that changes.

`wal/workers` says how many workers the logs in `wal/NNNN` are for. Logs are always made whole beside, in `wal.new`,
where that file is written last, and then take the place of the others; so a directory without it was not finished.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import xxhash

from shared import identity
from shared.control import Control, LocalControl
from shared.data_files import numbered
from shared.durable import DAMAGED, make_directory, rename, write_atomically, write_synced
from shared.errors import ConfigError
from shared.manifest import shard_directories
from shared.telemetry import event
from worker.storage.wal import files, reading, register, setting_aside
from worker.storage.wal.log import WriteAheadLog

NAME = "wal"
"""Of the directory in the data directory."""
WORKERS = "workers"


def directory_of(base: Path, worker: int) -> Path:
    """Where the log of a worker lies: that of the shards `worker`, `worker + workers`, … ."""
    return base / f"{worker:04d}"


def control_of(control: Control, worker: int) -> Control:
    """The documents in that directory; `control` is the data directory's."""
    return control.within(NAME).within(f"{worker:04d}")


def directories(base: Path) -> list[Path]:
    """Those of all workers, by number."""
    return numbered(base)


def prepare(data: Path, workers: int, cluster_id: str) -> None:
    """`arrange` the logs of this data directory, unless what is there is another's, or something that was there is not.
    Raises ConfigError then."""
    base = data / NAME
    try:
        logs = {int(path.name): LocalControl(path) for path in directories(base)}
        identity.verify(logs, cluster_id, identity.LOG)
        _refuse_lost(base, data)
    except OSError as error:
        raise ConfigError(f"{base}, the write-ahead log, cannot be used: {error}") from error
    arrange(base, workers)


def _refuse_lost(base: Path, data: Path) -> None:
    """Raises ConfigError when shards have been used and the logs are gone, or the content of one that has been used."""
    if not any(path.exists() for path in (base, *beside(base))):
        used = [path for path in shard_directories(data) if (path / identity.NAME).exists()]
        if used:
            raise ConfigError(
                f"{base} is missing, with the records that the shards had acknowledged and not stored; restore it from "
                f"a copy of the data directory, or accept the loss and have it begin anew: mkdir {base}"
            )
    for directory in directories(base):
        said, listed = directory / identity.NAME, directory / register.NAME
        if said.exists() and not listed.exists() and not reading.paths_of(directory):
            raise ConfigError(
                f"{directory} has lost its files, with the records that its worker's shards had acknowledged and not "
                f"stored; restore it from a copy of the data directory, or accept the loss and have it begin anew: "
                f"rm {said}"
            )


def arrange(base: Path, workers: int) -> None:
    """Have the logs in `base` laid out for so many workers. Call while none of them runs.

    Records of shards that have another worker now are written anew beside, and the directories exchanged; a crash
    leaves the one or the other. Raises ConfigError when the directory cannot be used or a newer release has written
    it, Unavailable when a worker of an earlier start still has its log.
    """
    try:
        _finish_exchange(base)
        before = read_workers(base / WORKERS)
        for directory in directories(base):
            reading.check_versions(directory)
        if before == workers:
            _have_all(base, workers)
            return
        _exchange(base, workers)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{base}, the write-ahead log, cannot be used: {error}") from error
    if before is not None or directories(base):
        event(logging.INFO, "write-ahead log laid out anew", workers=workers, before=before)


def _have_all(base: Path, workers: int) -> None:
    """Raises ConfigError when the directory of a log is gone."""
    missing = [directory for worker in range(workers) if not (directory := directory_of(base, worker)).is_dir()]
    if missing:
        raise ConfigError(
            f"{missing[0]} is missing, with the records that its worker's shards had acknowledged and not stored; "
            f"restore it from a copy of the data directory, or accept the loss and have it begin anew: "
            f"mkdir {missing[0]}"
        )


def encode_workers(workers: int) -> bytes:
    return f"{workers} {xxhash.xxh3_64_hexdigest(str(workers).encode())}\n".encode()


def read_workers(path: Path) -> int | None:
    """How many workers the logs are for; None when it is not said. Raises ValueError when it is damaged."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    text = content.split(b" ")[0]
    if text.isdigit() and content == encode_workers(int(text)):
        return int(text)
    raise ValueError(f"{path} is damaged; remove it to have the records dealt out to the workers anew")


def beside(base: Path) -> tuple[Path, Path]:
    """(where the logs are laid out anew, where they are moved to then)."""
    return base.with_name(base.name + ".new"), base.with_name(base.name + ".old")


def _finish_exchange(base: Path) -> None:
    """Go on where a crash has ended an exchange: with the new directory if it is whole, else with the old one."""
    new, old = beside(base)
    if not base.exists():
        if (new / WORKERS).exists():
            rename(new, base)
        elif old.exists():
            rename(old, base)
    for leftover in (new, old):
        if leftover.exists():
            shutil.rmtree(leftover)


def _exchange(base: Path, workers: int) -> None:
    new, old = beside(base)
    for worker in range(workers):
        make_directory(directory_of(new, worker))
    if base.exists():
        _write_anew(base, new, workers)
    # Last, and with it the names of all the others.
    write_atomically(new / WORKERS, encode_workers(workers))
    if base.exists():
        rename(base, old)
    rename(new, base)
    if old.exists():
        shutil.rmtree(old)


def _write_anew(base: Path, new: Path, workers: int) -> None:
    logs = [WriteAheadLog(directory_of(new, worker)).open() for worker in range(workers)]
    try:
        for directory in directories(base):
            owned = files.lock(directory)
            try:
                survey = reading.survey(directory)
                _keep_set_aside(directory, new, f"{directory.name}-")
                setting_aside.set_aside(survey, new, f"{directory.name}-")
                _keep_set_aside(directory, new, f"{directory.name}-")  # what has just been renamed
                survey.tell_cuts()
                for content in survey.used:
                    for item, payload in content.records:
                        logs[item.shard % workers].stream(item.shard, item.area).write([payload])
            finally:
                os.close(owned)
        _keep_set_aside(base, new, "")
        for log in logs:
            log.sync()
    finally:
        for log in logs:
            log.close()


def _keep_set_aside(directory: Path, new: Path, prefix: str) -> None:
    """Copy what was set aside before: it stays until an operator accepts the loss. The names are synced with that of
    the file that makes the new directory count."""
    for path in directory.glob(f"*{DAMAGED}*"):
        target = new / (prefix + path.name)
        if not target.exists():
            write_synced(target, path.read_bytes())
