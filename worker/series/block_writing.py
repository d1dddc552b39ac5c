"""Writes the files of a shard's new blocks, for sealing and for merging."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Event

from shared.promql.model import Samples
from shared.telemetry import event
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import BlockRow
from worker.series.blocks.seal import write_blocks
from worker.series.head import BEFORE, NEVER
from worker.series.index.postings import Ids

TURN_WAIT_S = 10.0
"""How long background work waits for its turn to change the journal."""
TIME_MIN, TIME_MAX = BEFORE + 1, NEVER - 1
"""The times of samples, in Unix ms."""


class BlockWriting:
    """Writes blocks of one shard. Their names are announced first, so a crash leaves no file of unknown origin."""

    def __init__(self, archive: Archive, stopping: Event) -> None:
        """`stopping`: when this is set, writing is abandoned."""
        self._archive = archive
        self._stopping = stopping

    def write(
        self,
        generation: int,
        read: Callable[[slice], Samples],
        permanent: Ids,
        parts: Sequence[slice],
        window_ms: int | None,
        before_ms: int,
        cleaned: int = 0,
    ) -> tuple[list[BlockRow], list[tuple[slice, Samples]]]:
        """Call `write_blocks` for this shard. If it raises, the announced names are given up first."""
        announced = list[str]()

        def announce(names: Sequence[str]) -> None:
            announced.extend(names)
            self._archive.announce(names)

        try:
            return write_blocks(
                self._archive.objects,
                generation,
                read,
                permanent,
                parts,
                window_ms=window_ms,
                before_ms=before_ms,
                cleaned=cleaned,
                announce=announce,
                stopped=self._stopping.is_set,
            )
        except BaseException:
            self._archive.give_up(announced)
            raise


def log_blocks(event_name: str, rows: Sequence[BlockRow], started: float, **fields: int) -> None:
    """Log that blocks were written, with their size and the time since `started`, by `time.monotonic()`."""
    samples, size = sum(row.samples for row in rows), sum(row.size_bytes for row in rows)
    ms = round((time.monotonic() - started) * 1000)
    event(logging.INFO, event_name, blocks=len(rows), samples=samples, bytes=size, ms=ms, **fields)
