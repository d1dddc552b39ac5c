"""The worker's methods of a backup: the files of its shards and of its log at one moment, in a directory beside them.

The directory is laid out as a data directory, so that it can be copied and then started. Nearly all of it are hard
links of files that never change: tables of the stores, blocks, snapshots of indexes, files of the write-ahead log (see
`WriteAheadLog.freeze`). docs/internals/backup.md says why what is in it belongs together.

`prepare` does what can be done before the moment, `freeze` is the moment, while the coordinator holds writes back, and
`finish` does the rest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shared import identity
from shared.durable import DAMAGED, DIRECTORY_MODE
from shared.errors import DeadlineExceeded, Unavailable
from shared.manifest import shard_directory
from shared.messages.backup import VIEWS, ViewBody
from shared.wire import Reply, Request, unpack
from worker.methods.method import Method
from worker.series.blocks.archive import BLOCK
from worker.series.blocks.block import SUFFIX as BLOCK_SUFFIX
from worker.shard import Shard
from worker.storage.objects import UNFINISHED, LocalObjects
from worker.storage.rows import check as store_check
from worker.storage.rows import manifest as store_manifest
from worker.storage.rows.marker import Marker
from worker.storage.wal import layout, register
from worker.storage.wal.log import SERIES, WriteAheadLog
from worker.storage.wal.reading import SUFFIX as LOG_SUFFIX
from worker.vectors import snapshot

Shards = Mapping[int, Shard]

INDEXES = "vector-index"
LINK_TRIES = 3
"""How often the files of an index's snapshot are linked, if it is replaced meanwhile."""
COPY_BYTES = 1 << 20


class _Place:
    """The data directory of these shards, and the directory of the view in it."""

    def __init__(self, shards: Shards, request: Request) -> None:
        shard = next(iter(shards.values()))
        self.data = shard.series.services.settings.data
        body = unpack(request.body, ViewBody)
        self.view = self.data / VIEWS / body.view
        self.skip_head = body.skip_head
        log = shard.logs.wal.log
        assert isinstance(log, WriteAheadLog)
        self.log = log
        self.log_view = self.view / layout.NAME / log.directory.name

    def of_shard(self, number: int) -> tuple[Path, Path]:
        """The directory of the shard, and that of the view."""
        return shard_directory(self.data, number), shard_directory(self.view, number)


def prepare(shards: Shards, request: Request) -> Reply:
    """Write out the stores' memory, and link blocks and indexes, most of which will be the same at the moment. Raises
    Unavailable, DeadlineExceeded."""
    place = _Place(shards, request)
    _require_time(request)
    if not place.view.is_dir():
        raise Unavailable(f"the view {place.view.name} has been given up")
    try:
        _make(place.log_view)
        for number in shards:
            source, target = place.of_shard(number)
            _make(target / "blocks")
            _link_blocks(source / "blocks", target / "blocks")
            _link_indexes(place, number)
    except OSError as error:
        raise _failed(error) from error
    for shard in shards.values():
        _require_time(request)
        shard.store.flush_all()
    return Reply()


def freeze(shards: Shards, request: Request) -> Reply:
    """The moment. The log comes before the stores, since records leave it when a store has their content; the blocks
    come after the stores, since a store names them when they are there. Raises Unavailable, DeadlineExceeded."""
    place = _Place(shards, request)
    try:
        listing = place.log.freeze(lambda path: os.link(path, place.log_view / path.name))
        for number, shard in shards.items():
            _require_time(request)
            source, target = place.of_shard(number)
            shard.store.make_image(target / "store")
            _link_blocks(source / "blocks", target / "blocks")
        (place.log_view / register.NAME).write_bytes(listing)
    except OSError as error:
        raise _failed(error) from error
    return Reply()


def finish(shards: Shards, request: Request) -> Reply:
    """Make the view complete, and independent of what goes on. Raises Unavailable, DeadlineExceeded."""
    place = _Place(shards, request)
    warnings: list[str] = []
    try:
        _finish_log(place)
        for number, shard in shards.items():
            _require_time(request)
            warnings += [f"shard {number}: {text}" for text in _finish_shard(place, number, shard)]
            source, target = place.of_shard(number)
            _link_present(source / identity.NAME, target / identity.NAME)
            _finish_indexes(place, number)
    except OSError as error:
        raise _failed(error) from error
    return Reply(warnings=warnings)


def _finish_log(place: _Place) -> None:
    """Copy the last file, which takes more records, up to where it ended; and what was set aside."""
    listing = register.read(place.log_view / register.NAME)
    assert listing is not None
    last = place.log_view / f"{max(listing.ends):08d}{LOG_SUFFIX}"
    copy = last.with_suffix(".part")
    _copy_first(last, copy, listing.ends[max(listing.ends)])
    os.replace(copy, last)
    if place.skip_head:
        layout.leave_out(place.log_view, SERIES)
    for source, target in ((place.log.directory, place.log_view), (place.log.directory.parent, place.log_view.parent)):
        for path in source.glob(f"*{DAMAGED}*"):
            _link_present(path, target / path.name)
    _link_present(place.log.directory / identity.NAME, place.log_view / identity.NAME)


def _finish_shard(place: _Place, number: int, shard: Shard) -> Iterator[str]:
    """Write the store's marker, and remove the links of blocks that the store does not name at the moment. Yields a
    text for each block that was missing before. Raises Unavailable if one has disappeared."""
    target = place.of_shard(number)[1]
    marker = Marker(target / "store")
    with store_check.opened(target / "store") as rows:
        marker.open(rows.writes, store_manifest.current(target / "store"))
        marker.close()
        named = {key[len(BLOCK) :].decode() + BLOCK_SUFFIX for key, _ in rows.scan("blocks", BLOCK, BLOCK + b"\xff")}
    present = {path.name for path in (target / "blocks").iterdir()}
    for name in present - named:
        if DAMAGED not in name:
            (target / "blocks" / name).unlink()
    broken = {block.object_name: reason for block, reason in shard.series.contents.layers.broken}
    for name, reason in broken.items():
        yield f"the block {name} is set aside: {reason}"
    lost = named - present - broken.keys()
    if lost:
        raise Unavailable(f"the block {min(lost)} was merged into another at the moment of the backup; try again")


def _link_blocks(source: Path, target: Path) -> None:
    for name in _names(source):
        if not name.endswith(UNFINISHED) and not os.path.lexists(target / name):
            _link_present(source / name, target / name)


def _link_indexes(place: _Place, number: int) -> None:
    """Link the snapshots of indexes whose lowest shard is this one."""
    for collection in _names(place.data / INDEXES):
        source = place.data / INDEXES / collection / str(number)
        target = place.view / INDEXES / collection / str(number)
        for _ in range(LINK_TRIES):
            before = _inode(source / snapshot.ROWS)
            if before is None:
                break
            _make(target)
            for name in _names(target):
                (target / name).unlink()
            for name in _names(source):
                _link_present(source / name, target / name)
            if _inode(source / snapshot.ROWS) == before:
                break


def _finish_indexes(place: _Place, number: int) -> None:
    """Remove what does not belong to a whole snapshot. An index without one is built anew from the store."""
    for collection in _names(place.view / INDEXES):
        saved = LocalObjects(place.view / INDEXES / collection).within(str(number))
        try:
            names = snapshot.object_names(saved)
        except (OSError, ValueError):
            saved.remove()
            continue
        for entry in saved.list():
            if entry.name not in names:
                saved.delete(entry.name)


def _names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _inode(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return path.stat().st_ino
    return None


def _make(directory: Path) -> None:
    os.makedirs(directory, mode=DIRECTORY_MODE, exist_ok=True)


def _link_present(source: Path, target: Path) -> None:
    """Link a file that may be deleted at any time."""
    with suppress(FileNotFoundError):
        os.link(source, target)


def _copy_first(source: Path, target: Path, size: int) -> None:
    """Copy the first `size` bytes of a file that grows."""
    with open(source, "rb") as reading, open(target, "xb") as writing:
        while size > 0:
            piece = reading.read(min(size, COPY_BYTES))
            if not piece:
                raise OSError(0, f"{source} ends {size} bytes before its records do")
            writing.write(piece)
            size -= len(piece)


def _require_time(request: Request) -> None:
    if request.time_left == 0:
        raise DeadlineExceeded(f"{request.method} took longer than its deadline")


def _failed(error: OSError) -> Unavailable:
    name = f"{error.filename}: " if error.filename else ""
    return Unavailable(f"a view of the data directory cannot be made: {name}{error.strerror or error}")


METHODS: dict[str, Method] = {
    "backup.prepare": Method(prepare, "write"),
    "backup.freeze": Method(freeze, "write"),
    "backup.finish": Method(finish, "write"),
}
