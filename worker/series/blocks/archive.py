"""The blocks of one shard and their tombstones, as rows of its store and objects beside it.

Family "blocks": `block/<name>` → BlockRow, `tombstone/<sequence>` → Tombstone, in msgpack; `leftover/<name>`: the file
of this name may be deleted, since it is not a block's yet, or not any more.

A file without a row is deleted only if that is known to be right: it still has the name that it has while it is
written, or there is a row that says it is left over, durable before the file got its name, or written with the batch
that took its block's row away. Any other one may be a block whose row was lost: it is set aside and reported.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable, Sequence
from threading import Lock

import msgspec

from shared.config import Settings
from shared.telemetry import event
from worker.series.blocks.block import SUFFIX, Block, BlockRow
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.layers import Layers, Tombstone, reading_order
from worker.storage.faces import Objects, RowBatch, Rows, State

BLOCK = b"block/"
_TOMBSTONE = b"tombstone/"
LEFT_OVER = b"leftover/"
_SEQUENCE = struct.Struct(">Q")


class Archive:
    """Rows and files; which blocks are served is the part's `Layers`."""

    def __init__(self, store: Rows, settings: Settings, objects: Objects) -> None:
        self._store = store
        self.objects = objects
        self.set_aside: list[str] = []
        """Where the objects are that no row names."""
        self._lock = Lock()  # of the names: blocks are sealed and merged by a thread each
        self._left_over: set[str] = set()
        self._coming: set[str] = set()  # of those, the ones whose files are being written
        self._cache = DecodedCache(settings.block_cache_bytes // settings.shards)

    def load(self) -> Layers:
        """All blocks and tombstones; those without a file, or with one that is too short, are `broken`. The files are
        not looked into. What is left over is removed; `set_aside` names what was not known. Raises OSError."""
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
        lost = {block.row.name for block, _ in broken}
        tombstones = []
        for key, value in self._store.scan("blocks", _TOMBSTONE, _TOMBSTONE + b"\xff"):
            with self._store.decoding("blocks", key):
                tombstones.append(msgspec.msgpack.decode(value, type=Tombstone))
        return Layers(
            blocks=reading_order(block for block in blocks if block.row.name not in lost),
            tombstones=tuple(tombstones),
            broken=broken,
        )

    def _tidy(self, named: set[str]) -> None:
        """Remove the files that are left over, and set aside those that are not known."""
        left_over = self._store.keys("blocks", LEFT_OVER, LEFT_OVER + b"\xff")
        self._left_over = {key.removeprefix(LEFT_OVER).decode() for key in left_over}
        for entry in self.objects.list():
            name, location = entry.name, self.objects.location(entry.name)
            if name in named:
                continue
            if entry.state is State.SET_ASIDE:
                self.set_aside.append(location)
            elif entry.state is State.DRAFT or name.removesuffix(SUFFIX) in self._left_over:
                event(logging.INFO, "file of a block removed that is not one", file=location)
                self.objects.delete(name)
            else:
                self.set_aside.append(self.objects.set_aside(name))
                event(logging.ERROR, "file set aside that no row names", file=location)
        # An unfinished file that a loss of power brings back is removed again.
        self.forget()

    def announce(self, names: Sequence[str]) -> None:
        """Before files get these names: when this returns, it is durable that they are left over until `put`. Raises
        Unavailable."""
        if not names:
            return
        batch = self._store.batch()
        for name in names:
            batch.put("blocks", LEFT_OVER + name.encode(), b"")
        with self._lock:
            self._left_over.update(names)
            self._coming.update(names)
        self._store.write(batch, durable=True)

    def give_up(self, names: Iterable[str]) -> None:
        """No files get these names any more, which had been announced."""
        with self._lock:
            self._coming.difference_update(names)

    def forget(self) -> None:
        """Drop the rows of files that were left over and are gone. Raises OSError, Unavailable."""
        with self._lock:
            names = self._left_over - self._coming
        gone = [name for name in names if not self.objects.exists(name + SUFFIX)]
        if not gone:
            return
        self.objects.sync_names()
        batch = self._store.batch()
        for name in gone:
            batch.delete("blocks", LEFT_OVER + name.encode())
        self._store.write(batch)
        with self._lock:
            self._left_over.difference_update(gone)

    def block(self, row: BlockRow, cache: DecodedCache | None = None) -> Block:
        return Block(row, self.objects, cache or self._cache)

    def put(self, batch: RowBatch, rows: Iterable[BlockRow]) -> None:
        for row in rows:
            assert self.objects.size(row.name + SUFFIX) == row.size_bytes
            batch.put("blocks", BLOCK + row.name.encode(), msgspec.msgpack.encode(row))
            batch.delete("blocks", LEFT_OVER + row.name.encode())

    def delete(self, batch: RowBatch, blocks: Iterable[Block]) -> None:
        for block in blocks:
            batch.delete("blocks", BLOCK + block.row.name.encode())
            batch.put("blocks", LEFT_OVER + block.row.name.encode(), b"")

    def changed(self, rows: Iterable[BlockRow], old: Iterable[Block]) -> None:
        """The batch of `put` and `delete` is in the store."""
        names = {row.name for row in rows}
        with self._lock:
            self._left_over -= names
            self._coming -= names
            self._left_over.update(block.row.name for block in old)

    def put_tombstone(self, batch: RowBatch, tombstone: Tombstone) -> None:
        key = _TOMBSTONE + _SEQUENCE.pack(tombstone.sequence)
        batch.put("blocks", key, msgspec.msgpack.encode(tombstone))

    def delete_tombstones(self, batch: RowBatch, tombstones: Iterable[Tombstone]) -> None:
        for tombstone in tombstones:
            batch.delete("blocks", _TOMBSTONE + _SEQUENCE.pack(tombstone.sequence))
