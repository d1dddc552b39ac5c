"""The worker's methods for a backup: the files of its shards and of its log at one moment, in a directory beside them.

The directory is laid out like a data directory, so that a copy of it can be started. Nearly everything in it is a hard
link to a file that never changes: tables of the stores, blocks, snapshots of indexes, files of the write-ahead log (see
`WriteAheadLog.freeze`). docs/internals/backup.md says why its contents are consistent.

`prepare` does what can be done in advance. `freeze` captures the moment while the coordinator holds writes back.
`finish` does the remaining work.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from shared import identity
from shared.durable import DAMAGED, DIRECTORY_MODE
from shared.errors import Unavailable
from shared.manifest import shard_directory
from shared.messages.backup import VIEWS, ViewBody
from shared.wire import Reply, Request, unpack
from worker.methods.method import Method, check
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
"""How often linking the files of an index snapshot is tried if the snapshot is replaced meanwhile."""
COPY_BYTES = 1 << 20


class _ViewPaths:
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
        """(the shard's directory, its directory in the view)."""
        return shard_directory(self.data, number), shard_directory(self.view, number)


def prepare(shards: Shards, request: Request) -> Reply:
    """Flush the stores, and link blocks and indexes, most of which will not change before the moment. Raises
    Unavailable, DeadlineExceeded."""
    paths = _ViewPaths(shards, request)
    check(request)
    if not paths.view.is_dir():
        raise Unavailable(f"the view {paths.view.name} has been given up")
    try:
        _make(paths.log_view)
        for number in shards:
            source, target = paths.of_shard(number)
            _make(target / "blocks")
            _link_blocks(source / "blocks", target / "blocks")
            _link_indexes(paths, number)
    except OSError as error:
        raise _failed(error) from error
    for shard in shards.values():
        check(request)
        shard.store.flush_all()
    return Reply()


def freeze(shards: Shards, request: Request) -> Reply:
    """Capture the moment. The log comes before the stores, because records leave the log once a store has their
    content. The blocks come after the stores, because a store names a block only once it exists. Raises Unavailable,
    DeadlineExceeded."""
    paths = _ViewPaths(shards, request)
    try:
        listing = paths.log.freeze(lambda path: os.link(path, paths.log_view / path.name))
        for number, shard in shards.items():
            check(request)
            source, target = paths.of_shard(number)
            shard.store.make_image(target / "store")
            _link_blocks(source / "blocks", target / "blocks")
        (paths.log_view / register.NAME).write_bytes(listing)
    except OSError as error:
        raise _failed(error) from error
    return Reply()


def finish(shards: Shards, request: Request) -> Reply:
    """Complete the view, and make it independent of later changes. Raises Unavailable, DeadlineExceeded."""
    paths = _ViewPaths(shards, request)
    warnings: list[str] = []
    try:
        _finish_log(paths)
        for number, shard in shards.items():
            check(request)
            warnings += [f"shard {number}: {text}" for text in _finish_shard(paths, number, shard)]
            source, target = paths.of_shard(number)
            _link_present(source / identity.NAME, target / identity.NAME)
            _finish_indexes(paths, number)
    except OSError as error:
        raise _failed(error) from error
    return Reply(warnings=warnings)


def _finish_log(paths: _ViewPaths) -> None:
    """Copy the last file, which still grows, up to its end at the moment; and the files that were set aside."""
    listing = register.read(paths.log_view / register.NAME)
    assert listing is not None
    last = paths.log_view / f"{max(listing.ends):08d}{LOG_SUFFIX}"
    copy = last.with_suffix(".part")
    _copy_first(last, copy, listing.ends[max(listing.ends)])
    os.replace(copy, last)
    if paths.skip_head:
        layout.leave_out(paths.log_view, SERIES)
    for source, target in ((paths.log.directory, paths.log_view), (paths.log.directory.parent, paths.log_view.parent)):
        for path in source.glob(f"*{DAMAGED}*"):
            _link_present(path, target / path.name)
    _link_present(paths.log.directory / identity.NAME, paths.log_view / identity.NAME)


def _finish_shard(paths: _ViewPaths, number: int, shard: Shard) -> Iterator[str]:
    """Write the store's marker, and remove the links to blocks that the store did not name at the moment. Yields a text
    for each block that is set aside. Raises Unavailable if a block has disappeared since."""
    target = paths.of_shard(number)[1]
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


def _link_indexes(paths: _ViewPaths, number: int) -> None:
    """Link the index snapshots whose lowest shard is this one."""
    for collection in _names(paths.data / INDEXES):
        source = paths.data / INDEXES / collection / str(number)
        target = paths.view / INDEXES / collection / str(number)
        for _ in range(LINK_TRIES):
            inode = _inode(source / snapshot.ROWS)
            if inode is None:
                break
            _make(target)
            for name in _names(target):
                (target / name).unlink()
            for name in _names(source):
                _link_present(source / name, target / name)
            if _inode(source / snapshot.ROWS) == inode:
                break


def _finish_indexes(paths: _ViewPaths, number: int) -> None:
    """Remove files that do not belong to a whole snapshot. An index without a snapshot is rebuilt from the store."""
    for collection in _names(paths.view / INDEXES):
        snapshots = LocalObjects(paths.view / INDEXES / collection).within(str(number))
        try:
            names = snapshot.object_names(snapshots)
        except (OSError, ValueError):
            snapshots.remove()
            continue
        for entry in snapshots.list():
            if entry.name not in names:
                snapshots.delete(entry.name)


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
    """Copy the first `size` bytes of a growing file."""
    with open(source, "rb") as source_file, open(target, "xb") as target_file:
        while size > 0:
            piece = source_file.read(min(size, COPY_BYTES))
            if not piece:
                raise OSError(0, f"{source} ends {size} bytes before its records do")
            target_file.write(piece)
            size -= len(piece)


def _failed(error: OSError) -> Unavailable:
    name = f"{error.filename}: " if error.filename else ""
    return Unavailable(f"a view of the data directory cannot be made: {name}{error.strerror or error}")


METHODS: dict[str, Method] = {
    "backup.prepare": Method(prepare, "write"),
    "backup.freeze": Method(freeze, "write"),
    "backup.finish": Method(finish, "write"),
}
