"""Checks a shard's block files against the rows that name them, without a running shard and changing nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from shared.durable import DAMAGED
from worker.series.blocks import SUFFIX, UNFINISHED, Block, BlockRow, CorruptBlock, Directory
from worker.series.cache import DecodedCache


@dataclass(frozen=True, slots=True)
class Damage:
    """A place of a file that is not what was written: what is wrong, and which samples are lost with it. `series`:
    int64[n], their permanent ids; None where that cannot be told any more, as the times are None then."""

    reason: str
    samples: int | None
    earliest_ms: int | None
    latest_ms: int | None
    series: NDArray[np.int64] | None


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What a file of `blocks/` is: a block with `samples_good` samples that can be read, and what is damaged of it."""

    path: Path
    damage: tuple[Damage, ...]
    samples_good: int = 0
    remark: str = ""
    """What becomes of a file that is no block, where that is no damage."""


def check_blocks(directory: Path, rows: Iterable[BlockRow], left_over: Collection[str] = ()) -> Iterator[FileCheck]:
    """Each file that a row names, also where it is missing, and each other one there is. `left_over` are the names for
    which the store has a row `leftover/<name>`. Reads every byte; raises OSError where the directory cannot be listed.
    """
    named = set()
    for row in rows:
        named.add(row.name + SUFFIX)
        yield _check_block(Block(row, directory, DecodedCache(0)))
    with os.scandir(directory) as files:
        unnamed = sorted(file.name for file in files if file.name not in named)
    for name in unnamed:
        path = directory / name
        if DAMAGED in name:
            yield FileCheck(path, (Damage("it was set aside", None, None, None, None),))
        elif name.endswith(UNFINISHED) or name.removesuffix(SUFFIX) in left_over:
            yield FileCheck(path, (), remark="left over, the next start removes it")
        else:
            yield FileCheck(path, (Damage("no row of the store names it", None, None, None, None),))


def _check_block(block: Block) -> FileCheck:
    row = block.row
    try:
        if reason := block.missing():
            raise CorruptBlock(block, reason)
        directory = block.directory()
        if reason := _contradiction(row, directory):
            raise CorruptBlock(block, reason)
    except CorruptBlock as error:
        return FileCheck(block.path, (Damage(error.reason, row.samples, row.earliest_ms, row.latest_ms, None),))
    damage, good = [], 0
    for number in range(len(directory.chunk_hashes)):
        runs = slice(*directory.chunk_runs[number : number + 2].tolist())
        samples = int(directory.counts[runs].sum(dtype=np.int64))
        try:
            block.chunk(directory, number)
            good += samples
        except CorruptBlock as error:
            earliest_ms, latest_ms = int(directory.earliest[runs].min()), int(directory.latest[runs].max())
            series = np.unique(directory.ids[runs]).astype(np.int64)
            damage.append(Damage(error.reason, samples, earliest_ms, latest_ms, series))
    return FileCheck(block.path, tuple(damage), good)


def _contradiction(row: BlockRow, directory: Directory) -> str:
    """In what the directory, whose checksum is right, is not that of this row; empty if it is."""
    samples = int(directory.counts.sum(dtype=np.int64))
    if samples != row.samples:
        return f"its directory has {samples} samples and its row {row.samples}"
    if int(directory.chunk_at[-1]) != row.directory_at:
        return f"its chunks end at {int(directory.chunk_at[-1])} and its directory begins at {row.directory_at}"
    return ""
