"""Removes series without samples and exemplars from the registry when a shard starts."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from shared.telemetry import event
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import Block, CorruptBlock
from worker.series.index.postings import Ids
from worker.series.index.registry import Registry
from worker.series.journal import Journal
from worker.storage.faces import RowBatch, Rows

_SWEEP = b"series/sweep"
"""The store has this row if blocks may have lost series. The next start then sweeps the registry."""


def ask_for(batch: RowBatch) -> None:
    """Add to `batch` a row that makes the next start sweep the registry."""
    batch.put("meta", _SWEEP, b"")


def sweep(
    store: Rows, registry: Registry, archive: Archive, journal: Journal, blocks: Sequence[Block], with_exemplars: Ids
) -> None:
    """Remove series without samples and exemplars from the registry, if there may be many. Call this at the start,
    before the registry is loaded. `blocks` must be all blocks, including damaged ones."""
    if store.get("meta", _SWEEP) is None:
        return
    if archive.set_aside:
        event(logging.ERROR, "series not swept", reason="files of blocks are set aside")
        return
    try:
        id_arrays = [block.directory().ids.astype(np.int64) for block in blocks]
    except CorruptBlock as error:
        event(logging.ERROR, "series not swept", reason=str(error))
        return
    id_arrays += [with_exemplars, *(record.series for _, record, _ in journal.records())]
    series_in_use = np.unique(np.concatenate(id_arrays))
    removed = registry.sweep(series_in_use)
    batch = store.batch()
    batch.delete("meta", _SWEEP)
    store.write(batch)
    event(logging.INFO, "series swept", gone=removed)
