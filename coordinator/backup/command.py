"""`triptych backup` and `triptych restore`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TextIO

from coordinator import command_client
from coordinator.backup import restoring, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError
from coordinator.backup.sources import Api
from shared.durable import FILE_UMASK

SHOWN_EVERY_S, LOGGED_EVERY_S = 0.2, 10.0
_UNITS = ((1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))


class Progress:
    """Shows how far the work is: in one line of a terminal, otherwise in a line every few seconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._is_terminal = output.isatty()
        self._next = time.monotonic() + (0.0 if self._is_terminal else LOGGED_EVERY_S)
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and not (self._shown and done == total):
            return
        self._next = now + (SHOWN_EVERY_S if self._is_terminal else LOGGED_EVERY_S)
        self._shown = True
        text = f"{bytes_text(done)} of {bytes_text(total)} {what}"
        self._output.write(f"\r{text:<60}" if self._is_terminal else text + "\n")
        if self._is_terminal and done == total:
            self._output.write("\n")
            self._shown = False
        self._output.flush()


def bytes_text(count: int) -> str:
    for unit, name in _UNITS:
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} bytes"


def add(areas: argparse._SubParsersAction[argparse.ArgumentParser], data: str) -> None:
    """Add the two commands to the parser of `triptych`."""
    text = (
        "Copy all data of a running cluster to DEST, a directory or s3://bucket/prefix: only what is not there yet. "
        "`backup list DEST` names the backups, `backup prune DEST --keep N` removes all but the newest N, and "
        "`backup DEST --verify` reads all of them."
    )
    backup = areas.add_parser("backup", help="copy all data of a running cluster", description=text)
    backup.add_argument("words", nargs="+", metavar="DEST", help="or: list DEST, prune DEST")
    command_client.add_options(backup)
    backup.add_argument("--verify", action="store_true", help="make no backup, but read those that are there")
    backup.add_argument("--keep", type=int, help="of prune: the number of backups that stay")
    text = "Write a backup from SRC into DIR, which must not exist or be empty, as the data directory of a new cluster."
    restore = areas.add_parser("restore", help="write a backup into a new data directory", description=text)
    restore.add_argument("source", metavar="SRC", help="a directory or s3://bucket/prefix")
    restore.add_argument("--data", type=Path, default=Path(data), help="(default: TRIPTYCH_DATA, or ./data)")
    restore.add_argument("--name", help="of the backup (default: the newest)")


def run_backup(api: Api, arguments: argparse.Namespace, output: TextIO) -> int:
    """Returns the exit code: 1 if a backup is damaged. Raises BackupError, OSError."""
    os.umask(FILE_UMASK)
    match arguments.words:
        case ["list", location]:
            return _list(location, output)
        case ["prune", location]:
            return _prune(location, arguments.keep, output)
        case [location] if arguments.verify:
            return _verify(location, output)
        case [location]:
            return _backup(api, location, output)
    raise BackupError(f"{' '.join(arguments.words)!r} is not understood; it must be DEST, `list DEST` or `prune DEST`")


def _backup(api: Api, location: str, output: TextIO) -> int:
    sending.yield_to_others()
    began = time.monotonic()
    sent = sending.backup(api, open_place(location, create=True), Progress(sys.stderr))
    for text in sent.inventory.warnings:
        sys.stderr.write(f"warning: {text}\n")
    output.write(
        f"{sent.inventory.name}: {len(sent.inventory.files)} files, {bytes_text(sent.inventory.size)}, of which "
        f"{bytes_text(sent.copied)} were copied, in {time.monotonic() - began:.1f} s; writes were held back for "
        f"{sent.held_back_ms:.0f} ms\n"
    )
    return 0


def _list(location: str, output: TextIO) -> int:
    unusable: list[str] = []
    for inventory in sending.inventories(open_place(location), tolerate=unusable):
        damaged = f", {len(inventory.warnings)} warnings" if inventory.warnings else ""
        output.write(f"{inventory.name}\t{len(inventory.files)} files\t{bytes_text(inventory.size)}{damaged}\n")
    for text in unusable:
        sys.stderr.write(f"warning: {text}\n")
    return int(bool(unusable))


def _prune(location: str, keep: int | None, output: TextIO) -> int:
    if keep is None or keep < 1:
        raise BackupError(f"--keep is {keep}; prune needs the number of backups that stay, at least 1")
    removed, freed = sending.prune(open_place(location), keep)
    for name in removed:
        output.write(f"{name} removed\n")
    output.write(f"{bytes_text(freed)} freed\n")
    return 0


def _verify(location: str, output: TextIO) -> int:
    texts = sending.verify(open_place(location), Progress(sys.stderr))
    for text in texts:
        output.write(text + "\n")
    output.write(f"{len(texts)} things are wrong\n" if texts else "all backups are whole\n")
    return int(bool(texts))


def run_restore(arguments: argparse.Namespace, output: TextIO) -> int:
    """Returns the exit code. Raises BackupError, OSError."""
    os.umask(FILE_UMASK)
    place = open_place(arguments.source)
    inventory = restoring.choose(place, arguments.name)
    restored = restoring.restore(place, inventory, arguments.data, Progress(sys.stderr))
    for text in inventory.warnings:
        sys.stderr.write(f"warning: {text}\n")
    output.write(
        f"{inventory.name} is restored in {arguments.data} as cluster {restored.cluster_id}; start it with "
        f"TRIPTYCH_DATA={arguments.data} TRIPTYCH_SHARDS={restored.shards}\n"
    )
    return 0
