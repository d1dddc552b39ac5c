"""The workers' part of `triptych check`: `python -m worker.check DATA` writes its findings as JSON.

Checks a data directory that no process uses. Changes nothing.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from shared import telemetry
from shared.catalogue_file import DIRECTORY, copies_in, newest
from shared.control import LocalControl
from shared.data_files import Finding, WorkersReport
from shared.durable import DAMAGED
from shared.errors import ConfigError
from shared.manifest import shard_directories
from worker import shard_check
from worker.storage.rows.damage import StoreLocked
from worker.storage.wal import check as wal_check
from worker.storage.wal import layout, reading, register
from worker.storage.wal import log as wal
from worker.storage.wal.check import FileReport
from worker.vectors import check as vectors

CANNOT_CHECK = 2
_AREAS = {wal.SERIES: "samples", wal.LOG: "log records"}

Records = dict[int, dict[int, list[memoryview]]]
"""Shard → area → payloads in the write-ahead log."""


def check(data: Path) -> WorkersReport:
    """Check the workers' files. Raises StoreLocked if a store is in use, OSError if something cannot be read."""
    base = _log_base(data)
    records = _records(base)
    findings = [*_of_log(data, base), *_of_layout(data, base), *_of_vectors(data)]
    collection_ids = _collection_ids(data)
    facts = []
    for path in shard_directories(data):
        shard = int(path.name)
        shard_findings, log_facts = shard_check.check(data, shard, records.get(shard, {}), collection_ids)
        findings += shard_findings
        if log_facts is not None:
            facts.append(log_facts)
    return WorkersReport(findings, facts)


def _log_base(data: Path) -> Path:
    """The directory of the write-ahead logs. A killed start may have left it under another name."""
    base = data / layout.NAME
    if base.exists():
        return base
    for other in layout.beside(base):
        if other.exists() and (other.suffix == ".old" or (other / layout.WORKERS).exists()):
            return other
    return base


def _records(base: Path) -> Records:
    records: Records = {}
    for directory in layout.directories(base):
        try:
            contents = reading.survey(directory).used
        except (OSError, ConfigError):
            continue  # the check of the log reports it
        for content in contents:
            for header, payload in content.records:
                records.setdefault(header.shard, {}).setdefault(header.area, []).append(payload)
    return records


def _of_log(data: Path, base: Path) -> Iterator[Finding]:
    if not base.exists():
        return
    for report in wal_check.check(base):
        path = report.path.relative_to(data).as_posix()
        good = f"{sum(report.records.values())} records" if report.records else ""
        for start, end in report.cut:
            what = (
                f"bytes {start} to {end} were not known to be synced, and are not whole: a write that a crash has cut"
            )
            yield Finding(path, what, "nothing that was acknowledged as synced", is_damage=False)
        for loss in report.losses:
            yield Finding(path, loss.what, _lacking(report, loss.streams), _remedy(report), good)
        if report.error:
            yield Finding(path, report.error, _depends_on(report), _remedy(report), good)


def _lacking(report: FileReport, streams: tuple[tuple[int, int], ...] | None) -> str:
    if streams is None:
        return "records, of any shard of this worker, that were not in stores and blocks yet: its answers say so"
    if not streams:
        return "nothing: the next start repairs it or creates it again"
    lacking = ", ".join(f"{_AREAS.get(area, 'records')} of shard {shard}" for shard, area in streams)
    return f"{lacking} that were not in stores and blocks yet: answers about them say so"


def _depends_on(report: FileReport) -> str:
    if report.path.name == layout.WORKERS:
        return "no data: without it, a start distributes the records among the workers again; it refuses a damaged one"
    return _lacking(report, None)


def _remedy(report: FileReport) -> str:
    if DAMAGED in report.path.name:
        return "delete it to accept the loss"
    if report.path.name == layout.WORKERS:
        return "delete it, if it is there"
    return "restore it from a copy; else start: what can be read is read, and the rest set aside"


def _of_layout(data: Path, base: Path) -> Iterator[Finding]:
    """Check that the directories of the log exist."""
    path = base / layout.WORKERS
    try:
        workers = layout.read_workers(path)
    except ValueError:
        return  # the check of the log reports it
    relative = path.relative_to(data).as_posix()
    list_paths = [directory / register.NAME for directory in layout.directories(base)]
    if workers is None:
        return
    if not path.read_bytes().startswith(layout.encode_workers(workers)) and any(
        list_path.exists() for list_path in list_paths
    ):
        yield Finding(
            relative,
            "its checksum is missing",
            "no data: a start distributes the records among the workers again",
            "delete it",
        )
    shards = [int(path.parents[1].name) for path in (data / "shards").glob("*/store/CURRENT")]
    for worker in sorted({shard % workers for shard in shards}):
        directory = layout.directory_of(base, worker)
        if not directory.exists():
            shards_text = ", ".join(str(shard) for shard in sorted(shards) if shard % workers == worker)
            depends = (
                f"what shards {shards_text} had acknowledged and not put into stores and blocks yet: a start refuses"
            )
            yield Finding(directory.relative_to(data).as_posix(), "it is missing", depends, "restore it from a copy")


def _of_vectors(data: Path) -> Iterator[Finding]:
    for damage in vectors.check(data):
        remedy = (
            "restore it from a copy, or start without it" if damage.costs_data else "nothing: the next start repairs it"
        )
        if DAMAGED in damage.path.name:
            remedy = "delete it to accept the loss"
        yield Finding(damage.path.relative_to(data).as_posix(), damage.what, damage.depends, remedy)


def _collection_ids(data: Path) -> set[int] | None:
    content = newest(copies_in(LocalControl(data / DIRECTORY)))
    return None if content is None else {collection.id for collection in (*content.collections, *content.dropped)}


def main() -> int:
    """Exit code 0 if the check was completed, whatever it found."""
    telemetry.logger.addHandler(logging.NullHandler())
    try:
        report = check(Path(sys.argv[1]))
    except (StoreLocked, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return CANNOT_CHECK
    sys.stdout.buffer.write(msgspec.json.encode(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
