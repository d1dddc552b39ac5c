"""Blocks of samples: the row of a block, and its file of chunks and a directory.

The checksums are made right, so that the decoders behind them see odd bytes; each input is read with the checksums that
it has, too. Whatever is wrong must end in CorruptBlock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import pairwise, product
from typing import cast
from unittest.mock import patch

import msgspec
import numpy as np
import xxhash
from hypothesis import strategies as st
from numpy.typing import NDArray

from shared.histograms.batch import HistogramBatch
from shared.histograms.references import is_reference, references, rows_of
from tests import chunks_v1 as old_chunks
from tests.fuzz import scratch
from tests.fuzz.memory_objects import MemoryObjects
from tests.fuzz.pieces import joined, split
from tests.fuzz.target import Target
from tests.fuzz.thresholds import lowered
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import Hint, NativeHistogram
from worker.series.blocks import chunks, chunks_v1, directory
from worker.series.blocks import histograms as stored_histograms
from worker.series.blocks import writer as writer_module
from worker.series.blocks.block import SUFFIX, Block, BlockRow, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.deletions import Deletions, Tombstone
from worker.series.blocks.writer import BlockWriter
from worker.series.pieces import join
from worker.storage.faces import Objects
from worker.storage.objects import LocalObjects
from worker.storage.rows.damage import DECODING_ERRORS

NAME = "block"
CHUNK_SAMPLES, PAGE_SAMPLES, RUN_SAMPLES_MAX, ALONE_SAMPLES = 6, 4, 5, 4
"""So few samples make a chunk, a page, the longest run, and a run that version 1 compresses on its own."""
IDS = np.arange(-1, 6)
RANGES_MS = ((-(1 << 62), 1 << 62), (2, 5), (3, 3))


class _Unchecked(Block):
    """A block whose checksums are always right."""

    def _read(self, at: int, size: int, checksum: int, what: str) -> bytes:
        data = self._objects.read(self.object_name, at, size)
        return super()._read(at, size, xxhash.xxh64_intdigest(data), what)


def _file(data: bytes) -> None:
    """What is read of a block lies within the arrays that were decoded."""
    encoded_row, encoded_directory, *encoded_chunks = [*split(data), b"", b""]
    content = b"".join(encoded_chunks)
    try:
        row = msgspec.msgpack.decode(encoded_row, type=BlockRow)
    except DECODING_ERRORS:
        return
    objects = cast(Objects, MemoryObjects({NAME + SUFFIX: content + encoded_directory}))
    for kind in (Block, _Unchecked):
        if kind is _Unchecked:
            if not content or not encoded_directory:
                return
            row = msgspec.structs.replace(
                row, name=NAME, directory_at=len(content), size_bytes=len(content) + len(encoded_directory)
            )
        opened = kind(row, objects, DecodedCache(1 << 20))
        if opened.missing():
            continue
        try:
            _read(opened)
        except CorruptBlock:
            if kind is _Unchecked:
                raise


def _read(opened: Block) -> None:
    with lowered("ALONE_SAMPLES", ALONE_SAMPLES, chunks_v1):
        opened.directory()
        for start_ms, end_ms in RANGES_MS:
            opened.may_have(IDS, start_ms, end_ms, [(IDS > 2, 3, 9)])
            opened.having(IDS, start_ms, end_ms, lambda: None)
            found = join(opened.pieces(IDS, start_ms, end_ms), len(IDS))
            assert found.offsets[-1] == len(found.values) == len(found.timestamps_ms) <= opened.row.samples
            if found.histograms is not None:
                assert rows_of(found.values[is_reference(found.values)]).max() < len(found.histograms)
                assert len(found.histograms.layouts.edges) == len(found.histograms.layouts.columns.indexes)
                stored_histograms.encode(found.histograms, np.array([len(found.histograms)]))


def _tombstone(data: bytes) -> None:
    stone = msgspec.msgpack.decode(data, type=Tombstone)
    list(Deletions([stone]).of(IDS, stone.sequence, stone.start_ms, stone.end_ms))
    stone.applies(1, 2, 3)


# Inputs


def _histogram_values() -> tuple[NDArray, HistogramBatch]:
    """Values of which some are histograms, of two layouts and one of custom boundaries, and these histograms."""
    counted = [NativeHistogram(schema=0, count=n, positive={2: n}, negative={1: 0.0}, sum=n) for n in (1.0, 3.0, 9.0)]
    custom = NativeHistogram(schema=-53, count=2.0, positive={0: 1.5, 2: 0.5}, bounds=(0.5, 1.0), hint=Hint.GAUGE)
    values = np.array([0.0, 0, 0, 1, 2, np.nan, 0, 0, 0, 0, 5, 1, 0, 0, 4])
    places = [0, 1, 2, 6, 7, 8, 9, 12, 13]
    values[places] = references(np.arange(len(places)))
    return values, batch_of([*counted, *counted, custom, custom, counted[0]])


@cache
def _parts(with_histograms: bool, version_1: bool) -> tuple[BlockRow, dict[str, NDArray], list[bytes]]:
    """A small block: its row, the columns of its directory and its chunks."""
    place = scratch.directory() / "whole"
    place.mkdir(exist_ok=True)
    with ExitStack() as stack:
        stack.enter_context(lowered("CHUNK_SAMPLES", CHUNK_SAMPLES, writer_module))
        stack.enter_context(lowered("RUN_SAMPLES_MAX", RUN_SAMPLES_MAX, writer_module))
        stack.enter_context(lowered("PAGE_SAMPLES", PAGE_SAMPLES, chunks))
        stack.enter_context(lowered("ALONE_SAMPLES", ALONE_SAMPLES, chunks_v1))
        if version_1:
            stack.enter_context(patch.object(chunks, "encode", old_chunks.encode))
        writer = BlockWriter(LocalObjects(place), 3)
        times = np.array([1, 2, 5, 1, 2, 5, 0, 1, 2, 3, 4, 5, 6, 9, 4], np.int64)
        values = np.array([1, 1, 1, 0.5, 2, np.nan, 1, 2, 3, 5, 7, 1, 1, 1.5, 4])
        ids, counts = np.array([0, 1, 2, 4]), np.array([3, 3, 8, 1])
        if with_histograms:
            writer.add(ids, counts, times, _histogram_values()[0], np.repeat(times[:5], 3), _histogram_values()[1])
        else:
            writer.add(ids, counts, times, values)
        row = writer.finish()
    content = (place / (row.name + SUFFIX)).read_bytes()
    decoded = directory.decode_directory(content[row.directory_at :], row.samples, row.directory_at)
    columns = {name: getattr(decoded, name) for name in directory.COLUMNS}
    columns["latest"] = decoded.latest - decoded.earliest
    bounds = decoded.chunk_at.tolist()
    parts = [content[at:end] for at, end in pairwise(bounds)]
    return msgspec.structs.replace(row, name=NAME, created_ms=0), columns, parts


def _input(row: BlockRow, columns: dict[str, NDArray], parts: list[bytes]) -> bytes:
    return joined([msgspec.msgpack.encode(row), directory.pack(columns), *parts])


def _files() -> Iterator[bytes]:
    for with_histograms, version_1 in product((False, True), repeat=2):
        yield _input(*_parts(with_histograms, version_1))


_NUMBERS = st.integers(-3, 20) | st.sampled_from([-(1 << 63), (1 << 63) - 1, (1 << 31) - 1, -(1 << 31), 1 << 40])


@st.composite
def _changed(draw: st.DrawFn) -> bytes:
    """A block with some numbers of its directory changed, left out, added, or of another type, and some bytes of its
    chunks."""
    row, columns, parts = _parts(draw(st.booleans()), draw(st.booleans()))
    columns, parts = dict(columns), list(parts)
    for _ in range(draw(st.integers(0, 3))):
        name = draw(st.sampled_from(list(directory.COLUMNS)))
        dtype = columns[name].dtype
        words = columns[name].view(f"u{dtype.itemsize}").tolist()
        at = draw(st.integers(0, len(words)))
        kind = draw(st.sampled_from(["set", "insert", "remove", "type"]))
        if kind == "set":
            words[at : at + 1] = [draw(_NUMBERS)]
        elif kind == "insert":
            words.insert(at, draw(_NUMBERS))
        elif kind == "remove":
            del words[at:]
        else:
            dtype = np.dtype(draw(st.sampled_from([np.int32, np.int64, np.uint64, np.float64, np.int16])))
        mask = (1 << 8 * dtype.itemsize) - 1
        columns[name] = np.array([word & mask for word in words], f"u{dtype.itemsize}").view(dtype)
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.integers(0, len(parts) - 1))
        changed = bytearray(parts[number])
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
        parts[number] = bytes(changed)
    if draw(st.booleans()):
        row = msgspec.structs.replace(row, samples=int(columns["counts"].astype(np.int64).clip(1, 1000).sum()) or 1)
    return _input(row, columns, parts)


def _tombstones() -> Iterator[bytes]:
    yield msgspec.msgpack.encode(Tombstone.of(5, np.array([1, 2, 7]), 0, 9))


TARGETS = [
    Target("block-file", _file, _files, _changed, refusals=(CorruptBlock,)),
    Target("block-tombstone", _tombstone, _tombstones, refusals=DECODING_ERRORS, bytes_max=256),
]
