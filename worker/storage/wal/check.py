"""Reads write-ahead logs while nobody runs, and says what is damaged and what is still good. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.durable import DAMAGED
from shared.errors import ConfigError
from worker.storage.wal import layout, losses, reading, register
from worker.storage.wal.losses import Key, Loss


@dataclass(frozen=True, slots=True)
class FileReport:
    """`records`: (shard, area) → whole records. `bytes`: of their payloads. `cut`: extents that were not known to be
    synced and do not count. `losses` may be without anything missing: see `Loss.streams`. `error`: why it could not
    be read at all."""

    path: Path
    records: dict[Key, int] = field(default_factory=dict)
    bytes: int = 0
    losses: tuple[Loss, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.losses and not self.error

    @property
    def shards(self) -> list[int] | None:
        """Those that lack something; None when it may be any of this worker's."""
        if self.error or any(loss.streams is None for loss in self.losses):
            return None
        return sorted({shard for loss in self.losses for shard, _ in loss.streams or ()})

    def lines(self) -> Iterator[str]:
        good = f"{sum(self.records.values())} whole records of {len({shard for shard, _ in self.records})} shards"
        yield f"{self.path}: {good}, {self.bytes} bytes"
        for start, end in self.cut:
            yield f"{self.path}: bytes {start} to {end} were not synced and do not count"
        for loss in self.losses:
            yield f"{self.path}: {loss.what}"
        if self.error:
            yield f"{self.path}: {self.error}"
        if not self.is_good:
            shards = self.shards
            yield f"{self.path}: lacking: " + (
                "any shard of this worker" if shards is None else ", ".join(f"shard {n}" for n in shards) or "nothing"
            )


def check(base: Path) -> list[FileReport]:
    """A report for each file of the logs in `base` (`wal` in the data directory): control files, files in use, and what
    was set aside before. All is well when each of them `is_good`."""
    reports = []
    path = base / layout.WORKERS
    try:
        missing = layout.read_workers(path) is None
        reports.append(FileReport(path, error="it is missing" if missing else ""))
    except ValueError as error:
        reports.append(FileReport(path, error=str(error)))
    for directory in layout.directories(base):
        reports += _of_directory(directory)
    for each in (base, *layout.directories(base)):
        reports += [FileReport(known.path, losses=known.losses) for known in losses.known(each)]
    return reports


def _of_directory(directory: Path) -> Iterator[FileReport]:
    try:
        survey = reading.survey(directory)
    except (OSError, ConfigError) as error:
        yield FileReport(directory, error=str(error))
        return
    listed = directory / register.NAME
    if survey.listing is not None and not survey.listing.is_whole:
        yield FileReport(listed, losses=(Loss(losses.name_of(listed), 0, 0, "one of its two copies is damaged", ()),))
    for loss in survey.losses:
        yield FileReport(directory / Path(loss.file).name, losses=(loss,))
    for path in survey.unknown:
        yield FileReport(path, error=f"it is no file of this log; the next start renames it to {path.name}{DAMAGED}")
    for content in survey.used:
        records = Counter((item.shard, item.area) for item, _ in content.records)
        size = sum(item.length for item, _ in content.records)
        yield FileReport(content.path, dict(records), size, tuple(content.losses), tuple(content.cut))
