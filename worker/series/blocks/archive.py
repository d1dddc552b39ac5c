"""The blocks of one shard and their tombstones: rows of the shard's store, and a file for each block.

Family "blocks" of the store has the rows `block/<name>` → BlockRow and `tombstone/<sequence>` → Tombstone, in msgpack.
An empty row `leftover/<name>` says that the file of this name may be deleted, because it is not yet, or no longer, the
file of a block.

A file that no `block/` row names is deleted only in two cases: it still has the name of an unfinished file, or a
`leftover/` row names it. Such a row is durable before the file gets its name, or it is written in the batch that
deletes the block's row. Any other file may be a block whose row was lost: it is set aside and reported.

The batch that names a block may be refused. Its file is then deleted only after the store has taken a later write: a
store that takes no more writes may have applied the batch all the same.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import msgspec

from shared.settings import Settings
from shared.telemetry import event
from worker.series.blocks.block import SUFFIX, Block, BlockRow
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.deletions import Tombstone
from worker.series.blocks.layers import Layers, reading_order
from worker.storage.faces import Objects, ObjectState, RowBatch, Rows

BLOCK = b"block/"
TOMBSTONE = b"tombstone/"
LEFT_OVER = b"leftover/"
_SEQUENCE = struct.Struct(">Q")


class Archive:
    """Reads and writes the rows and files of blocks. Which blocks are read is decided by `Layers`."""

    def __init__(self, store: Rows, settings: Settings, objects: Objects) -> None:
        self._store = store
        self.objects = objects
        self.set_aside: list[str] = []
        """Locations of the files that no row names."""
        self._lock = Lock()  # guards the three sets of names: one thread seals blocks, another merges them
        self._left_over: set[str] = set()
        self._being_written: set[str] = set()  # left-over names whose files are being written
        self._given_up: set[str] = set()  # left-over names whose files are not needed
        self.cache = DecodedCache(settings.block_cache_bytes // settings.shard_count())

    def load(self) -> Layers:
        """Load all blocks and tombstones. A block whose file is missing or too short is `broken`; the contents of files
        are not read. Deletes left-over files, and lists the other files that no row names in `set_aside`. Raises
        OSError, StoreDamaged."""
        self.objects.prepare()
        rows = self._store.scan("blocks", BLOCK, BLOCK + b"\xff")
        blocks = []
        for key, value in rows:
            with self._store.decoding("blocks", key):
                blocks.append(self.block(msgspec.msgpack.decode(value, type=BlockRow)))
        broken = tuple((block, reason) for block in blocks if (reason := block.missing()))
        for block, reason in broken:
            event(logging.ERROR, "block set aside", file=block.location, reason=reason)
        self._tidy({block.object_name for block in blocks})
        broken_names = {block.row.name for block, _ in broken}
        tombstones = []
        for key, value in self._store.scan("blocks", TOMBSTONE, TOMBSTONE + b"\xff"):
            with self._store.decoding("blocks", key):
                tombstones.append(msgspec.msgpack.decode(value, type=Tombstone))
        return Layers(
            blocks=reading_order(block for block in blocks if block.row.name not in broken_names),
            tombstones=tuple(tombstones),
            broken=broken,
        )

    def _tidy(self, object_names: set[str]) -> None:
        """Delete left-over files, and set unknown files aside. `object_names`: the names of the files of all blocks."""
        left_over = self._store.keys("blocks", LEFT_OVER, LEFT_OVER + b"\xff")
        self._left_over = {key.removeprefix(LEFT_OVER).decode() for key in left_over}
        for entry in self.objects.list():
            name, location = entry.name, self.objects.location(entry.name)
            if name in object_names:
                continue
            if entry.state is ObjectState.SET_ASIDE:
                self.set_aside.append(location)
            elif entry.state is ObjectState.DRAFT or name.removesuffix(SUFFIX) in self._left_over:
                event(logging.INFO, "left-over block file deleted", file=location)
                self.objects.delete(name)
            else:
                self.set_aside.append(self.objects.set_aside(name))
                event(logging.ERROR, "file set aside that no row names", file=location)
        # An unfinished file that reappears after a loss of power is deleted again by the next start.
        self.forget()

    def announce(self, names: Sequence[str]) -> None:
        """Announce that files will get these names. When this returns, the files durably count as left over, until
        `put`. Raises Unavailable."""
        if not names:
            return
        batch = self._store.batch()
        for name in names:
            batch.put("blocks", LEFT_OVER + name.encode(), b"")
        with self._lock:
            self._left_over.update(names)
            self._being_written.update(names)
        self._store.write(batch, durable=True)

    def give_up(self, names: Iterable[str]) -> None:
        """Note that these announced names will not become blocks. `forget` deletes their files."""
        names = set(names)
        with self._lock:
            self._being_written -= names
            self._given_up |= names

    @contextmanager
    def given_up_on_failure(self, rows: Sequence[BlockRow]) -> Iterator[None]:
        """A context for turning files into blocks: if it fails, the names of `rows` are given up. `rows` may grow."""
        try:
            yield
        except BaseException:
            self.give_up(row.name for row in rows)
            raise

    def forget(self) -> None:
        """Delete the files that were given up, and the rows of left-over files that no longer exist. Raises OSError,
        Unavailable."""
        with self._lock:
            names, given_up = self._left_over - self._being_written, self._given_up & self._left_over
        present = [name for name in given_up if self.objects.exists(name + SUFFIX)]
        if present:
            batch = self._store.batch()
            for name in present:
                batch.put("blocks", LEFT_OVER + name.encode(), b"")
            self._store.write(batch)  # a store that accepts this has not applied the batch that it refused
            for name in present:
                self.objects.delete(name + SUFFIX)
        deleted_names = [name for name in names if not self.objects.exists(name + SUFFIX)]
        if not deleted_names:
            return
        self.objects.sync_names()
        batch = self._store.batch()
        for name in deleted_names:
            batch.delete("blocks", LEFT_OVER + name.encode())
        self._store.write(batch)
        with self._lock:
            self._left_over.difference_update(deleted_names)
            self._given_up.difference_update(deleted_names)

    def block(self, row: BlockRow, cache: DecodedCache | None = None) -> Block:
        """The block of this row. It keeps decoded data in `cache`, by default the archive's own."""
        return Block(row, self.objects, cache or self.cache)

    def put(self, batch: RowBatch, rows: Iterable[BlockRow]) -> None:
        """Add the rows of new blocks to `batch`; their files are no longer left over."""
        for row in rows:
            assert self.objects.size(row.name + SUFFIX) == row.size_bytes
            batch.put("blocks", BLOCK + row.name.encode(), msgspec.msgpack.encode(row))
            batch.delete("blocks", LEFT_OVER + row.name.encode())

    def delete(self, batch: RowBatch, blocks: Iterable[Block]) -> None:
        """Delete the rows of these blocks in `batch`; their files are left over from then on."""
        for block in blocks:
            batch.delete("blocks", BLOCK + block.row.name.encode())
            batch.put("blocks", LEFT_OVER + block.row.name.encode(), b"")

    def changed(self, rows: Iterable[BlockRow], old: Iterable[Block]) -> None:
        """Note that the batch of `put` (`rows`) and `delete` (`old`) is in the store."""
        names = {row.name for row in rows}
        with self._lock:
            self._left_over -= names
            self._being_written -= names
            self._left_over.update(block.row.name for block in old)

    def put_tombstone(self, batch: RowBatch, tombstone: Tombstone) -> None:
        key = TOMBSTONE + _SEQUENCE.pack(tombstone.sequence)
        batch.put("blocks", key, msgspec.msgpack.encode(tombstone))

    def delete_tombstones(self, batch: RowBatch, tombstones: Iterable[Tombstone]) -> None:
        for tombstone in tombstones:
            batch.delete("blocks", TOMBSTONE + _SEQUENCE.pack(tombstone.sequence))
