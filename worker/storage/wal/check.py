"""Checks write-ahead logs offline: what is damaged, and what can still be read. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.durable import DAMAGED
from shared.errors import ConfigError
from worker.storage.wal import layout, losses, reading, register
from worker.storage.wal.losses import Loss, StreamKey


@dataclass(frozen=True, slots=True)
class FileReport:
    """The result for one file. `records`: (shard, area) → number of whole records. `bytes`: total size of their
    payloads. `cut`: byte ranges that were not known to be synced and do not count. `losses`: damage, including damage
    that cost no record (see `Loss.streams`). `error`: why the file could not be read at all, else empty."""

    path: Path
    records: dict[StreamKey, int] = field(default_factory=dict)
    bytes: int = 0
    losses: tuple[Loss, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()
    error: str = ""

    @property
    def is_good(self) -> bool:
        return not self.losses and not self.error

    @property
    def shards(self) -> list[int] | None:
        """The shards that lack records; None if any shard of this worker may."""
        if self.error or any(loss.streams is None for loss in self.losses):
            return None
        return sorted({shard for loss in self.losses for shard, _ in loss.streams or ()})

    def lines(self) -> Iterator[str]:
        """The report as text, one fact per line."""
        records = f"{sum(self.records.values())} whole records of {len({shard for shard, _ in self.records})} shards"
        yield f"{self.path}: {records}, {self.bytes} bytes"
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
    """A report for each file of the logs in `base` (`wal` in the data directory): control files, files in use, and
    files that were set aside. The logs are whole if every report `is_good`. Raises OSError."""
    reports = []
    path = base / layout.WORKERS
    try:
        is_missing = layout.read_workers(path) is None
        reports.append(FileReport(path, error="it is missing" if is_missing else ""))
    except ValueError as error:
        reports.append(FileReport(path, error=str(error)))
    for directory in layout.directories(base):
        reports += _check_directory(directory)
    for directory in (base, *layout.directories(base)):
        reports += [FileReport(aside.path, losses=aside.losses) for aside in losses.known(directory)]
    return reports


def _check_directory(directory: Path) -> Iterator[FileReport]:
    try:
        survey = reading.survey(directory)
    except (OSError, ConfigError) as error:
        yield FileReport(directory, error=str(error))
        return
    list_path = directory / register.NAME
    if survey.listing is not None and not survey.listing.is_whole:
        loss = Loss(losses.name_of(list_path), 0, 0, "one of its two copies is damaged", ())
        yield FileReport(list_path, losses=(loss,))
    for loss in survey.losses:
        yield FileReport(directory / Path(loss.file).name, losses=(loss,))
    for path in survey.unknown:
        yield FileReport(path, error=f"it is no file of this log; the next start renames it to {path.name}{DAMAGED}")
    for content in survey.used:
        records = Counter((header.shard, header.area) for header, _ in content.records)
        size = sum(header.length for header, _ in content.records)
        yield FileReport(content.path, dict(records), size, tuple(content.losses), tuple(content.cut))
