"""Reads the directory of a write-ahead log without changing it: the records, and what is damaged or missing.

The list beside the files (`register`) says which files are in use. Such a file must be whole up to the offset to which
it is known to have been synced. That offset is the end that the list gives; or the end of the last record, if a later
file has records; or else the synced offset in the records themselves.

Above that offset, an incomplete record at the very end is a write that a crash has torn. An incomplete record with
whole records after it is a hole, whose meaning depends on whether the power was lost since (`register.Listing.power`).
If it was lost, pages have reached the disk out of order, and the log ends at the hole: only the tail is lost. If it was
not lost, only damage makes a hole, and the records after the hole count. If that is not known, the records after the
hole count too, and the hole is not reported as damage.
"""

from __future__ import annotations

import errno
import itertools
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import ConfigError
from shared.telemetry import event
from worker.storage.wal import losses, record, register
from worker.storage.wal.losses import Loss
from worker.storage.wal.record import RecordHeader
from worker.storage.wal.register import Listing, Power

SUFFIX = ".wal"
_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14 and later, which Python does not name."""


@dataclass(slots=True)
class FileContent:
    """The content of one file in use. `records` are whole; their payloads are views of `data`, the file's memory map.
    `cut`: byte ranges [start, end) that were not known to be synced and do not count. `synced`: whole records below
    this offset are known to be on the disk."""

    number: int
    path: Path
    data: memoryview
    records: list[tuple[RecordHeader, memoryview]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    cut: list[tuple[int, int]] = field(default_factory=list)
    synced: int = 0

    @property
    def tail(self) -> list[tuple[RecordHeader, memoryview]]:
        """The records that may not be on the disk, because no successful sync is known to have covered them."""
        return [item for item in self.records if item[0].offset >= self.synced]


@dataclass(slots=True)
class Survey:
    """The content of a log's directory. `listing`: the list of files, None if it is missing or cannot be read. `used`:
    the files in use, by ascending number. `unused`: files that may be reused. `unknown`: files that do not seem to
    belong to the log. `missing`: numbers of listed files that do not exist."""

    directory: Path
    listing: Listing | None
    used: list[FileContent] = field(default_factory=list)
    unused: list[Path] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    """Losses that are not in the files in `used`: missing files, or a damaged list."""
    highest: int = 0
    """The highest file number ever given."""

    def log_cuts(self) -> None:
        """Log each byte range that was cut."""
        for content in self.used:
            for start, end in content.cut:
                event(logging.WARNING, "write-ahead log cut", file=str(content.path), at=start, bytes=end - start)


def paths_of(directory: Path) -> list[Path]:
    """The files of a log, by number."""
    return sorted((path for path in directory.glob(f"*{SUFFIX}") if path.stem.isdigit()), key=number_of)


def number_of(path: Path) -> int:
    return int(path.stem)


def check_versions(directory: Path) -> None:
    """Raise ConfigError if a newer release has written a file of this directory, OSError."""
    for path in paths_of(directory):
        _refuse_newer(path, record.read_header(_first_bytes(path)))


def _refuse_newer(path: Path, header: record.FileHeader) -> None:
    if header.version > record.VERSION:
        raise ConfigError(
            f"{path} has version {header.version} of the write-ahead log's format; this program reads versions up to "
            f"{record.VERSION}: start the release that wrote it"
        )


def survey(directory: Path) -> Survey:
    """Read all files of a log's directory. Raises OSError, ConfigError if a newer release has written one of them."""
    contents = Survey(directory, None)
    is_list_lost = False
    try:
        contents.listing = register.read(directory / register.NAME)
    except ValueError as error:
        _add_list_loss(contents, str(error))
        is_list_lost = True
    for path in paths_of(directory):
        first_bytes = _first_bytes(path)
        header = record.read_header(first_bytes)
        _refuse_newer(path, header)
        if contents.listing is None and header.is_sound and not is_list_lost:
            _add_list_loss(contents, "the list of files is missing")
            is_list_lost = True
        number = number_of(path)
        if _is_used(contents.listing, number, header, path):
            contents.used.append(FileContent(number, path, _map_file(path)))
        elif header.is_empty or header.is_sound or record.begins_header(number, first_bytes):
            contents.unused.append(path)
        else:
            contents.unknown.append(path)
    contents.highest = max([*map(number_of, paths_of(directory)), contents.listing.highest if contents.listing else 0])
    if contents.listing is not None:
        used_numbers = {content.number for content in contents.used}
        contents.missing = sorted(set(contents.listing.ends) - used_numbers)
        for number in contents.missing:
            path = directory / f"{number:08d}{SUFFIX}"
            contents.losses.append(Loss(losses.name_of(path), 0, 0, "the file is missing, with all records in it"))
    _read_all(contents)
    if contents.listing is None:
        _leave_out_copies(contents.used)
    return contents


def _add_list_loss(contents: Survey, why: str) -> None:
    path = contents.directory / register.NAME
    contents.losses.append(Loss(losses.name_of(path), 0, 0, f"{why}; files of the log may be missing"))


def _is_used(listing: Listing | None, number: int, header: record.FileHeader, path: Path) -> bool:
    if listing is not None:
        return number in listing.ends
    if header.is_sound and header.number == number:
        return True
    # Without the list, a header that is neither sound nor empty is damaged if a record after it names this file.
    return not header.is_empty and next(record.scan(number, _map_file(path)), None) is not None


def _first_bytes(path: Path) -> bytes:
    """The first bytes of a file, which say whether it is in use. Nothing more is read of an unused file, so its other
    pages may be unreadable."""
    with path.open("rb") as file:
        return file.read(record.FILE_HEADER_BYTES)


def _map_file(path: Path) -> memoryview:
    """The content of a file as a memory map. Raises OSError, also if the disk cannot read part of the file: access to
    such a page would kill the process, at this start and at every later one."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    try:
        mapped.madvise(_POPULATE_READ)
    except OSError as error:
        if error.errno == errno.EFAULT:
            raise OSError(errno.EIO, "the disk cannot read all of it", str(path)) from error
        if error.errno != errno.EINVAL:  # from an older kernel, which reads the pages on first access
            raise
    return memoryview(mapped)


def _read_all(contents: Survey) -> None:
    listing = contents.listing or Listing()
    is_last = True
    for content in reversed(contents.used):
        known_end = listing.ends.get(content.number, 0)
        _read_records(content, known_end, is_last, listing.power)
        if content.records or content.cut or known_end:
            is_last = False


def _leave_out_copies(used: list[FileContent]) -> None:
    """Drop one of two copies of the same records. A start writes the tail of the last file again to the next one, and
    the list says which of the two counts. Without the list, a complete copy replaces the tail, and an incomplete copy
    is left out."""
    for content, following in itertools.pairwise(used):
        synced = max((header.synced for header, _ in content.records), default=0)
        tail = [item for item in content.records if item[0].offset >= synced]
        copies = following.records[: len(tail)]
        if not tail or not copies or any(_identity(a) != _identity(b) for a, b in zip(tail, copies, strict=False)):
            continue
        if len(copies) == len(tail):
            content.records = content.records[: -len(tail)]
        elif len(copies) == len(following.records):
            following.records = []


def _identity(item: tuple[RecordHeader, memoryview]) -> tuple[int, int, memoryview]:
    """(shard, area, payload): equal for a record and its copy."""
    return item[0].shard, item[0].area, item[1]


def _read_records(content: FileContent, known_end: int, is_last: bool, power: Power) -> None:
    """Fill `content` from its `data`. `known_end`: the end of the records in the list, 0 if it is not known. `is_last`:
    no later file has records."""
    broken: list[tuple[int, int, RecordHeader | None]] = []
    next_offset = record.FILE_HEADER_BYTES
    for item in record.scan(content.number, content.data):
        if known_end and item.offset >= known_end:
            break  # the records from here on were written again to a later file
        if isinstance(item, record.Damage):
            broken.append((item.offset, item.end, None))
        elif item.is_whole:
            content.records.append((item, content.data[item.start : item.start + item.length]))
        else:
            broken.append((item.offset, item.end, item))
        next_offset = item.end
    # After the death of a process, a file is as long as it was prepared; a loss of power may shorten it.
    least_bytes = record.read_header(content.data).least_bytes if power == "kept" else 0
    if known_end > next_offset:
        broken.append((next_offset, known_end, None))
    elif not known_end and len(content.data) < least_bytes:
        broken.append((next_offset, least_bytes, None))
    last_synced = max((header.synced for header, _ in content.records), default=record.FILE_HEADER_BYTES)
    content.synced = known_end or (last_synced if is_last else next_offset)
    unsynced = [(start, end) for start, end, _ in broken if start >= content.synced]
    if unsynced and power == "lost":
        hole = unsynced[0][0]
        content.records = [item for item in content.records if item[0].offset < hole]
        content.cut = [(hole, next_offset)]
    elif power == "kept":
        content.cut = [(start, end) for start, end in unsynced if end == next_offset]
    else:
        content.cut = unsynced
    content.losses = [*_losses(content, broken), *_header_losses(content)]


def _losses(content: FileContent, broken: list[tuple[int, int, RecordHeader | None]]) -> Iterator[Loss]:
    """A loss for each broken range that was not cut. `broken`: (start, end, header if it is readable)."""
    name = losses.name_of(content.path)
    for start, end, torn in broken:
        if any(cut_start <= start < cut_end for cut_start, cut_end in content.cut):
            continue
        if torn is None:
            yield Loss(name, start, end, f"bytes {start} to {end} are damaged, with the records there")
        else:
            what = f"a record of {torn.length} bytes at {start} is damaged"
            yield Loss(name, start, end, what, ((torn.shard, torn.area),))


def _header_losses(content: FileContent) -> Iterator[Loss]:
    header, name = record.read_header(content.data), losses.name_of(content.path)
    if header.is_sound and header.number == content.number:
        return
    if content.records:
        what = "its header is damaged; the records behind it have been read all the same"
        yield Loss(name, 0, record.FILE_HEADER_BYTES, what, ())
    else:
        yield Loss(name, 0, len(content.data), "its header is damaged, and nothing in it can be read")
