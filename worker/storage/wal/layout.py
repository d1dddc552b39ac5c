"""Which worker's write-ahead log holds the records of which shards, and how the logs are rewritten when that changes.

`wal/workers` says how many workers the logs in `wal/NNNN` are for. New logs are always written to `wal.new`, which then
replaces `wal`. The file `workers` is written last, so a `wal.new` without it is incomplete.
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
"""The directory of all logs, in the data directory."""
WORKERS = "workers"
"""The file that contains the number of workers, in the directory of all logs."""


def directory_of(base: Path, worker: int) -> Path:
    """The directory of a worker's log, which holds the records of the shards `worker`, `worker + workers`, … ."""
    return base / f"{worker:04d}"


def control_of(control: Control, worker: int) -> Control:
    """The documents in the directory of a worker's log; `control` is the data directory's."""
    return control.within(NAME).within(f"{worker:04d}")


def directories(base: Path) -> list[Path]:
    """The directories of all workers' logs, by number."""
    return numbered(base)


def prepare(data: Path, workers: int, cluster_id: str) -> None:
    """Check that the logs of this data directory belong to this cluster and are all present, then `arrange` them for
    this number of workers. Raises ConfigError if a log belongs elsewhere or is missing, and as `arrange` does."""
    base = data / NAME
    try:
        logs = {int(path.name): LocalControl(path) for path in directories(base)}
        identity.verify(logs, cluster_id, identity.LOG)
        _refuse_lost(base, data)
    except OSError as error:
        raise ConfigError(f"{base}, the write-ahead log, cannot be used: {error}") from error
    arrange(base, workers)


def _refuse_lost(base: Path, data: Path) -> None:
    """Raise ConfigError if shards have been used and the directory of all logs is gone, or if a log has been used and
    its files are gone."""
    if not any(path.exists() for path in (base, *beside(base))):
        used_shards = [path for path in shard_directories(data) if (path / identity.NAME).exists()]
        if used_shards:
            raise ConfigError(
                f"{base} is missing, with the records that the shards had acknowledged and not stored; restore it from "
                f"a copy of the data directory, or accept the loss and have it begin anew: mkdir {base}"
            )
    for directory in directories(base):
        identity_path, list_path = directory / identity.NAME, directory / register.NAME
        if identity_path.exists() and not list_path.exists() and not reading.paths_of(directory):
            raise ConfigError(
                f"{directory} has lost its files, with the records that its worker's shards had acknowledged and not "
                f"stored; restore it from a copy of the data directory, or accept the loss and have it begin anew: "
                f"rm {identity_path}"
            )


def arrange(base: Path, workers: int) -> None:
    """Lay out the logs in `base` for this number of workers. Call this while no worker runs.

    If the number has changed, all records are written to new logs beside the old ones, and then the directories are
    exchanged; a crash leaves either the old logs or the new ones, complete. Raises ConfigError if the directory cannot
    be used or a newer release has written it, Unavailable if a worker of an earlier start still has its log open.
    """
    try:
        _finish_exchange(base)
        previous_workers = read_workers(base / WORKERS)
        for directory in directories(base):
            reading.check_versions(directory)
        if previous_workers == workers:
            _require_all(base, workers)
            return
        _exchange(base, workers)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{base}, the write-ahead log, cannot be used: {error}") from error
    if previous_workers is not None or directories(base):
        event(logging.INFO, "write-ahead log laid out anew", workers=workers, before=previous_workers)


def _require_all(base: Path, workers: int) -> None:
    """Raise ConfigError if the directory of a log is missing."""
    missing = [directory for worker in range(workers) if not (directory := directory_of(base, worker)).is_dir()]
    if missing:
        raise ConfigError(
            f"{missing[0]} is missing, with the records that its worker's shards had acknowledged and not stored; "
            f"restore it from a copy of the data directory, or accept the loss and have it begin anew: "
            f"mkdir {missing[0]}"
        )


def encode_workers(workers: int) -> bytes:
    """The content of the file `WORKERS`: the number and its checksum."""
    return f"{workers} {xxhash.xxh3_64_hexdigest(str(workers).encode())}\n".encode()


def read_workers(path: Path) -> int | None:
    """The number of workers that the logs are for; None if the file does not exist. Raises ValueError if it is damaged,
    OSError."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    text = content.split(b" ")[0]
    if text.isdigit() and content == encode_workers(int(text)):
        return int(text)
    raise ValueError(f"{path} is damaged; remove it to have the records dealt out to the workers anew")


def beside(base: Path) -> tuple[Path, Path]:
    """(directory to which new logs are written, directory to which the old logs are moved once the new ones are
    complete)."""
    return base.with_name(base.name + ".new"), base.with_name(base.name + ".old")


def _finish_exchange(base: Path) -> None:
    """Complete an exchange that a crash has interrupted: keep the new directory if it is complete, else the old one,
    and delete the other. Raises OSError."""
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
    """Write new logs, and replace the old ones by them. Raises OSError, ConfigError, Unavailable."""
    new, old = beside(base)
    for worker in range(workers):
        make_directory(directory_of(new, worker))
    if base.exists():
        _copy_records(base, new, workers)
    # Written last: this makes the new directory valid, and syncs the names of everything in it.
    write_atomically(new / WORKERS, encode_workers(workers))
    if base.exists():
        rename(base, old)
    rename(new, base)
    if old.exists():
        shutil.rmtree(old)


def _copy_records(base: Path, new: Path, workers: int) -> None:
    """Copy all records, and all files that were set aside, from the logs in `base` to logs in `new`. Raises OSError,
    ConfigError, Unavailable."""
    logs = [WriteAheadLog(directory_of(new, worker)).open() for worker in range(workers)]
    try:
        for directory in directories(base):
            lock_descriptor = files.lock(directory)
            try:
                survey = reading.survey(directory)
                _keep_set_aside(directory, new, f"{directory.name}-")
                setting_aside.set_aside(survey, new, f"{directory.name}-")
                _keep_set_aside(directory, new, f"{directory.name}-")  # the unknown files, which have just been renamed
                survey.log_cuts()
                for content in survey.used:
                    for header, payload in content.records:
                        logs[header.shard % workers].stream(header.shard, header.area).write([payload])
            finally:
                os.close(lock_descriptor)
        _keep_set_aside(base, new, "")
        for log in logs:
            log.sync()
    finally:
        for log in logs:
            log.close()


def leave_out(directory: Path, area: int) -> None:
    """Rewrite the log in a directory without the records of one area. No process may have it open. Raises OSError,
    ConfigError, Unavailable."""
    rewritten = directory.with_name(directory.name + ".new")
    log = WriteAheadLog(rewritten).open()
    try:
        for content in reading.survey(directory).used:
            for header, payload in content.records:
                if header.area != area:
                    log.stream(header.shard, header.area).write([payload])
    finally:
        log.close()
    shutil.rmtree(directory)
    os.rename(rewritten, directory)


def _keep_set_aside(directory: Path, new: Path, prefix: str) -> None:
    """Copy the files that were set aside earlier: they stay until an operator accepts the loss. Their names are synced
    later, when `WORKERS` is written. Raises OSError."""
    for path in directory.glob(f"*{DAMAGED}*"):
        target = new / (prefix + path.name)
        if not target.exists():
            write_synced(target, path.read_bytes())
