"""`triptych backup` and `triptych restore`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from coordinator.backup import restoring, sending
from coordinator.backup.destination import open_place
from coordinator.backup.inventory import BackupError
from coordinator.backup.sources import Api
from coordinator.command_client import Client, CommandError
from coordinator.commands.connection import FILE, with_client
from coordinator.commands.progress import bytes_text
from coordinator.plurals import counted
from shared.durable import FILE_UMASK

if TYPE_CHECKING:
    import rich.progress

LOGGED_EVERY_S = 10.0


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="DEST")
@click.option("--verify", is_flag=True, help="Check all existing backups instead of making one.")
@click.option("--keep", type=int, metavar="N", help="With prune: the number of backups to keep.")
@click.option("--json", "as_json", is_flag=True, help="With list: print JSON.")
@with_client
def backup(client: Client, words: tuple[str, ...], verify: bool, keep: int | None, as_json: bool) -> int:
    """Back up all data of a running cluster to DEST, a directory or s3://bucket/prefix. Data that earlier backups in
    DEST have is not copied again.

    \b
    triptych backup /mnt/backups --url http://127.0.0.1:9090
    triptych backup list /mnt/backups              prints the names of the backups
    triptych backup prune /mnt/backups --keep 7    removes all but the newest 7
    triptych backup /mnt/backups --verify          reads every byte of all backups
    """
    with _errors(), _ended_in_order():
        return run_backup(client, words, sys.stdout, verify=verify, keep=keep, as_json=as_json)


@click.command()
@click.argument("source", metavar="SRC")
@click.option(
    "--data",
    type=FILE,
    envvar="TRIPTYCH_DATA",
    default=Path("data"),
    help="The new data directory (default: TRIPTYCH_DATA, or ./data).",
)
@click.option("--name", help="The name of the backup (default: the newest).")
def restore(source: str, data: Path, name: str | None) -> int:
    """Restore a backup from SRC as the data of a new cluster. The data directory must be empty or not exist.

    SRC is a directory or s3://bucket/prefix.
    """
    with _errors():
        return run_restore(source, data, name, sys.stdout)


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except BackupError as error:
        raise CommandError(str(error)) from error


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """While the context lasts, SIGTERM and SIGHUP end the command like Ctrl-C, so that it releases the lock of its
    place of backups. A process that is killed keeps the lock of a bucket for some minutes."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    earlier = {number: signal.getsignal(number) for number in numbers}
    replaced = [number for number in numbers if earlier[number] is not signal.SIG_IGN]  # which `nohup` sets
    for number in replaced:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in replaced:
            signal.signal(number, earlier[number])


def run_backup(
    api: Api,
    words: Sequence[str],
    output: TextIO,
    *,
    verify: bool = False,
    keep: int | None = None,
    as_json: bool = False,
) -> int:
    """Returns the exit code: 1 if a backup is damaged. Raises BackupError, OSError."""
    os.umask(FILE_UMASK)
    match words:
        case ["list", location]:
            return _list(location, output, as_json=as_json)
        case ["prune", location]:
            return _prune(location, keep, output)
        case [location] if verify:
            return _verify(location, output)
        case [location]:
            return _backup(api, location, output)
    raise BackupError(f"{' '.join(words)!r} is not understood; it must be DEST, `list DEST` or `prune DEST`")


def _backup(api: Api, location: str, output: TextIO) -> int:
    sending.yield_to_others()
    began = time.monotonic()
    with _progress(sys.stderr) as report:
        sent = sending.backup(api, open_place(location, create=True), report)
    for text in sent.inventory.warnings:
        sys.stderr.write(f"warning: {text}\n")
    output.write(
        f"{sent.inventory.name}: {counted(len(sent.inventory.files), 'files')}, {bytes_text(sent.inventory.size)}, "
        f"of which {bytes_text(sent.copied)} were copied, in {time.monotonic() - began:.1f} s; writes were held back "
        f"for {sent.held_back_ms:.0f} ms\n"
    )
    return 0


def _list(location: str, output: TextIO, *, as_json: bool) -> int:
    unusable: list[str] = []
    inventories = list(sending.inventories(open_place(location), tolerate=unusable))
    if as_json:
        rows = [
            {"name": one.name, "files": len(one.files), "bytes": one.size, "warnings": list(one.warnings)}
            for one in inventories
        ]
        output.write(json.dumps({"backups": rows, "unusable": unusable}) + "\n")
        return int(bool(unusable))
    for inventory in inventories:
        damaged = f", {counted(len(inventory.warnings), 'warnings')}" if inventory.warnings else ""
        output.write(
            f"{inventory.name}\t{counted(len(inventory.files), 'files')}\t{bytes_text(inventory.size)}{damaged}\n"
        )
    for text in unusable:
        sys.stderr.write(f"warning: {text}\n")
    return int(bool(unusable))


def _prune(location: str, keep: int | None, output: TextIO) -> int:
    if keep is None or keep < 1:
        seen = "missing" if keep is None else keep
        raise BackupError(f"--keep is {seen}; it must be the number of backups to keep, at least 1")
    removed, freed = sending.prune(open_place(location), keep)
    for name in removed:
        output.write(f"{name} removed\n")
    output.write(f"{bytes_text(freed)} freed\n")
    return 0


def _verify(location: str, output: TextIO) -> int:
    place = open_place(location)
    with _progress(sys.stderr) as report:
        texts = sending.verify(place, report)
    if not texts and not sending.inventories(place):
        raise BackupError(f"{location} has no backup")
    for text in texts:
        output.write(text + "\n")
    output.write(f"{counted(len(texts), 'errors')} found\n" if texts else "all backups are intact\n")
    return int(bool(texts))


def run_restore(source: str, data: Path, name: str | None, output: TextIO) -> int:
    """Returns the exit code. Raises BackupError, OSError."""
    os.umask(FILE_UMASK)
    place = open_place(source)
    inventory = restoring.choose(place, name)
    with _progress(sys.stderr) as report:
        restored = restoring.restore(place, inventory, data, report)
    for text in inventory.warnings:
        sys.stderr.write(f"warning: {text}\n")
    output.write(
        f"{inventory.name} is restored in {data} as cluster {restored.cluster_id}; start it with TRIPTYCH_DATA={data}\n"
    )
    return 0


@contextmanager
def _progress(output: TextIO) -> Iterator[sending.Report]:
    """Shows progress: bars on a terminal, otherwise a line every few seconds."""
    if not output.isatty():
        yield Lines(output)
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=output)) as bars:
        yield Bars(bars)


class Bars:
    """A bar for each kind of work."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(what)
        self._bars.update(self._tasks[what], completed=done, total=total)


class Lines:
    """A line every few seconds."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._next = time.monotonic() + LOGGED_EVERY_S
        self._is_shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if now < self._next and not (self._is_shown and done == total):
            return
        self._next = now + LOGGED_EVERY_S
        self._is_shown = True
        self._output.write(f"{bytes_text(done)} of {bytes_text(total)} {what}\n")
        self._output.flush()
