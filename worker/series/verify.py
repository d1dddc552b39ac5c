"""Checks a shard's series, journal and block files against the rows of its store, without a running shard. Changes
nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from worker.series import exemplars, journal, metadata
from worker.series.blocks import archive
from worker.series.blocks.block import SUFFIX, Block, BlockRow, CorruptBlock
from worker.series.blocks.cache import DecodedCache
from worker.series.blocks.deletions import Tombstone
from worker.series.index import registry
from worker.series.journal import Sealed
from worker.series.series_record import SeriesRecord
from worker.storage.faces import ObjectState
from worker.storage.objects import LocalObjects
from worker.storage.rows.damage import DECODING_ERRORS
from worker.storage.rows.reading import StoreReader

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged part of a file: what is wrong, and which samples are lost with it. `series`: int64[n], their permanent
    ids. The other fields are None when they are not known."""

    reason: str
    samples: int | None
    earliest_ms: int | None
    latest_ms: int | None
    series: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class FileCheck:
    """The check of one file of `blocks/`: its damage, and the number of its samples that can be read (`samples_good`).
    `series`: int64[n], the ids of the series in it; None if they are not known."""

    path: Path
    damage: tuple[Damage, ...]
    samples_good: int = 0
    remark: str = ""
    """A note on a file that is not a block, if that is not damage."""
    series: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True)
class SeriesRows:
    """What a store's rows say about a shard's series. `ids`: int64[n], the ids of its series, ascending. `left_over`:
    names of left-over block files. `wrong`: texts about rows that are not valid."""

    ids: NDArray[np.int64]
    sealed: Sealed
    blocks: tuple[BlockRow, ...]
    left_over: frozenset[str]
    wrong: tuple[str, ...]

    def unknown(self, ids: NDArray) -> NDArray[np.int64]:
        """The distinct ids among `ids` that no series has."""
        return np.setdiff1d(ids.astype(np.int64), self.ids)


def series_rows(reader: StoreReader) -> SeriesRows:
    """Read and check the store's rows about series. Raises StoreDamaged when a row cannot be read."""
    problems: list[str] = []
    ids: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)]
    end = 0
    for key, value in reader.scan("series"):
        try:
            row = registry.parsed(key, value)
            if row.first < end:
                raise ValueError(f"series {row.first} is twice in the store")
            end = row.end
            ids.append(np.flatnonzero(row.lengths) + row.first)
        except DECODING_ERRORS as error:
            problems.append(_invalid_row("series", key, error))
    next_id_row = reader.get("meta", registry.GIVEN)
    if (next_id_row or bytes(8)) != end.to_bytes(8, "big"):
        text = f"ids were given up to {int.from_bytes(next_id_row or b'', 'big')}"
        problems.append(f"the rows of its series end at id {end}, and {text}")

    def check_exemplars(_: bytes, value: bytes) -> None:
        ids_of_row = msgspec.msgpack.decode(value, type=exemplars.SavedExemplars).record().series
        if not np.isin(ids_of_row, np.concatenate(ids)).all():
            raise ValueError("it has exemplars of series that the store does not have")

    def decoded(family: str, start: bytes, end: bytes, decode: Callable[[bytes, bytes], T]) -> list[T]:
        """What `decode` makes of each key and value from `start` to `end`; invalid ones go to `problems`."""
        rows = []
        for key, value in reader.scan(family, start, end):
            try:
                rows.append(decode(key, value))
            except DECODING_ERRORS as error:
                problems.append(_invalid_row(family, key, error))
        return rows

    sealed = decoded("meta", journal.SEALED, journal.SEALED + b"\0", _of_type(Sealed))
    blocks = decoded("blocks", archive.BLOCK, archive.BLOCK + b"\xff", _of_type(BlockRow))
    decoded("blocks", archive.TOMBSTONE, archive.TOMBSTONE + b"\xff", _of_type(Tombstone))
    decoded("meta", journal.NEXT, journal.NEXT + b"\0", lambda _, value: journal.decode_next(value))
    decoded("meta", metadata.PREFIX, metadata.END, metadata.decode)
    decoded("meta", exemplars.PREFIX, exemplars.END, check_exemplars)
    left_over = reader.scan("blocks", archive.LEFT_OVER, archive.LEFT_OVER + b"\xff")
    names = frozenset(key.removeprefix(archive.LEFT_OVER).decode() for key, _ in left_over)
    return SeriesRows(np.concatenate(ids), sealed[0] if sealed else Sealed(), tuple(blocks), names, tuple(problems))


def _of_type(kind: type[T]) -> Callable[[bytes, bytes], T]:
    """A decoder of rows whose value is a struct of this kind."""
    return lambda _, value: msgspec.msgpack.decode(value, type=kind)


def _invalid_row(family: str, key: bytes, error: Exception) -> str:
    return f"the row {key!r} of {family!r} is invalid: {error}"


def check_journal(rows: SeriesRows, payloads: Iterable[memoryview]) -> Iterator[str]:
    """Yield a text for each problem with the journal's records in the write-ahead log. Records that are cut and samples
    that are sealed are ignored: retention may have dropped these samples, and a start then removes their series."""
    undecodable, orphaned_samples, unknown_ids = 0, 0, np.zeros(0, dtype=np.int64)
    restorable_ids = [np.zeros(0, dtype=np.int64)]
    for payload in payloads:
        try:
            sequence, record = journal.decode(payload)
        except DECODING_ERRORS:
            undecodable += 1
            continue
        if sequence < rows.sealed.cut:
            continue
        if isinstance(record, SeriesRecord):
            if sequence >= rows.sealed.sequence:  # a start restores those that the store has lost with the power
                restorable_ids.append(np.arange(record.first, record.end))
            continue
        if isinstance(record, journal.Written) and sequence < rows.sealed.sequence:
            record = record.since(rows.sealed.before_ms)
        unknown = rows.unknown(record.series)
        if len(unknown):
            unknown = np.setdiff1d(unknown, np.concatenate(restorable_ids))
        unknown_ids = np.union1d(unknown_ids, unknown)
        if isinstance(record, journal.Written) and len(unknown):
            orphaned_samples += int(np.isin(record.rows(), unknown).sum())
    if undecodable:
        yield f"{undecodable} records of samples cannot be decoded"
    if len(unknown_ids):
        what = f"{len(unknown_ids)} series that the store does not have, such as id {unknown_ids[0]}"
        yield f"{orphaned_samples} samples are of {what}"


def check_blocks(directory: Path, rows: Iterable[BlockRow], left_over: Collection[str] = ()) -> Iterator[FileCheck]:
    """Check each file that a row names, even if it is missing, and then every other file. `left_over`: the names for
    which the store has a row `leftover/<name>`. Reads every byte. Raises OSError if the directory cannot be listed."""
    object_names = set()
    objects = LocalObjects(directory)
    for row in rows:
        block = Block(row, objects, DecodedCache(0))
        object_names.add(block.object_name)
        yield _check_block(block, directory / block.object_name)
    for entry in objects.list():
        name, path = entry.name, directory / entry.name
        if name in object_names:
            continue
        if entry.state is ObjectState.SET_ASIDE:
            yield FileCheck(path, (Damage("it was set aside", None, None, None, None),))
        elif entry.state is ObjectState.DRAFT or name.removesuffix(SUFFIX) in left_over:
            yield FileCheck(path, (), remark="left over, the next start removes it")
        else:
            yield FileCheck(path, (Damage("no row of the store names it", None, None, None, None),))


def _check_block(block: Block, path: Path) -> FileCheck:
    row = block.row
    try:
        if reason := block.missing():
            raise CorruptBlock(block, reason)
        directory = block.directory()
    except CorruptBlock as error:
        return FileCheck(path, (Damage(error.reason, row.samples, row.earliest_ms, row.latest_ms, None),))
    damage, samples_good = [], 0
    for number in range(len(directory.chunk_hashes)):
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        samples = int(directory.counts[runs].sum(dtype=np.int64))
        try:
            block.chunk(directory, number)
            samples_good += samples
        except CorruptBlock as error:
            earliest_ms, latest_ms = int(directory.earliest[runs].min()), int(directory.latest[runs].max())
            series = np.unique(directory.ids[runs]).astype(np.int64)
            damage.append(Damage(error.reason, samples, earliest_ms, latest_ms, series))
    return FileCheck(path, tuple(damage), samples_good, series=np.unique(directory.ids).astype(np.int64))
