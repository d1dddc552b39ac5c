"""The blocks of one shard and their tombstones, as rows of its store and files beside it.

Family "blocks": `block/<name>` → BlockRow, `tombstone/<sequence>` → Tombstone, in msgpack. A file without a row is left
over from a crash, and removed at the next start.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from pathlib import Path

import msgspec

from shared.config import Settings
from shared.durable import make_directory
from shared.telemetry import event
from worker.series.blocks import SUFFIX, Block, BlockRow
from worker.series.cache import DecodedCache
from worker.series.layers import Tombstone, reading_order
from worker.storage import Batch, Store

_BLOCK = b"block/"
_TOMBSTONE = b"tombstone/"
_SEQUENCE = struct.Struct(">Q")


class Archive:
    """Rows and files; which blocks are served is the part's `Layers`."""

    def __init__(self, store: Store, settings: Settings, directory: Path) -> None:
        self._store = store
        self.directory = directory
        self._cache = DecodedCache(settings.block_cache_bytes // settings.shards)

    def load(self) -> tuple[tuple[Block, ...], tuple[Tombstone, ...]]:
        """All blocks, in reading order, and tombstones. The files are not looked into."""
        make_directory(self.directory)
        rows = self._store.scan("blocks", _BLOCK, _BLOCK + b"\xff")
        blocks = [self.block(msgspec.msgpack.decode(value, type=BlockRow)) for _, value in rows]
        named = {block.path.name for block in blocks}
        with os.scandir(self.directory) as files:
            left_over = [file.path for file in files if file.name not in named]
        for path in left_over:
            event(logging.INFO, "unfinished block removed", file=path)
            os.unlink(path)
        stones = self._store.scan("blocks", _TOMBSTONE, _TOMBSTONE + b"\xff")
        return reading_order(blocks), tuple(msgspec.msgpack.decode(value, type=Tombstone) for _, value in stones)

    def block(self, row: BlockRow, cache: DecodedCache | None = None) -> Block:
        return Block(row, self.directory, cache or self._cache)

    def put(self, batch: Batch, rows: Iterable[BlockRow]) -> None:
        for row in rows:
            assert (self.directory / (row.name + SUFFIX)).exists()
            batch.put("blocks", _BLOCK + row.name.encode(), msgspec.msgpack.encode(row))

    def delete(self, batch: Batch, blocks: Iterable[Block]) -> None:
        for block in blocks:
            batch.delete("blocks", _BLOCK + block.row.name.encode())

    def put_tombstone(self, batch: Batch, tombstone: Tombstone) -> None:
        key = _TOMBSTONE + _SEQUENCE.pack(tombstone.sequence)
        batch.put("blocks", key, msgspec.msgpack.encode(tombstone))

    def delete_tombstones(self, batch: Batch, tombstones: Iterable[Tombstone]) -> None:
        for tombstone in tombstones:
            batch.delete("blocks", _TOMBSTONE + _SEQUENCE.pack(tombstone.sequence))
