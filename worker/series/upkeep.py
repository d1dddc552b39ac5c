"""The threads of a shard's background work: one seals the head (`sealing`), and one opens the newest blocks after a
start (`blocks.opening`), and then merges and drops blocks (`block_upkeep`).

Both have a low priority. A process seals one shard and merges one shard at a time. So a seal waits only for other
seals, whose time is bounded, and never for a merge, whose time is not. Neither thread holds a lock of the shard while
it compresses or writes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread, get_native_id
from typing import Any

from shared.errors import TriptychError
from shared.process.allocator import trim
from shared.telemetry import event
from worker.series.block_upkeep import BlockUpkeep
from worker.series.blocks.archive import Archive
from worker.series.blocks.block import CorruptBlock
from worker.series.blocks.opening import CACHE_SHARE, open_newest
from worker.series.blocks.seal import Stopped
from worker.series.contents import Contents
from worker.series.exemplars import Exemplars
from worker.series.ingest import Turn
from worker.series.journal import Journal
from worker.series.sealing import Sealing
from worker.series.services import SeriesServices
from worker.storage.faces import Rows

TICK_S = 1.0
RETRY_S = 10.0
"""Pause after a failure, such as a full disk."""
NICENESS = 10


class Upkeep:
    """The background work of one shard."""

    def __init__(
        self,
        contents: Contents,
        journal: Journal,
        archive: Archive,
        exemplars: Exemplars,
        turn: Turn,
        store: Rows,
        services: SeriesServices,
    ) -> None:
        self._contents = contents
        self._wake = Event()
        self._stopping = Event()
        self.sealing = Sealing(contents, journal, archive, exemplars, turn, store, services, self._stopping)
        self.blocks = BlockUpkeep(contents, journal, archive, turn, store, services, self._stopping)
        self.failures = 0
        self._background = services.background
        self._cache = archive.cache
        threads = (
            ("seal", self._run, lambda now_ms: self.sealing.tick(now_ms), services.sealing, self._wake),
            ("merge", self._open_and_tend, services.merging),
        )
        self._threads = [Thread(target=_at_low_priority, args=work, name=name, daemon=True) for name, *work in threads]

    def start(self) -> None:
        """Start the threads. Call this when the part is loaded."""
        self.sealing.begin()
        trim()
        for thread in self._threads:
            thread.start()

    def wake(self) -> None:
        """Check now whether to seal, because the head is over its bound."""
        self._wake.set()

    def stop(self) -> None:
        """Abandon the work in progress, and return when the threads have ended."""
        self._stopping.set()
        self._wake.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _open_and_tend(self, process_lock: Lock) -> None:
        try:
            self.open_newest()
        except (OSError, TriptychError, CorruptBlock):
            pass  # a query that needs the block reports what is wrong
        except Exception:
            event(logging.WARNING, "opening blocks failed", trace=True)
        self._run(lambda now_ms: self.blocks.tend(now_ms), process_lock, self._stopping)

    def open_newest(self) -> int:
        """Open the newest blocks, until queries need the CPU. Returns the size of what was opened. Raises CorruptBlock,
        Unavailable."""
        return open_newest(self._contents.layers.blocks, self._cache.bytes_max // CACHE_SHARE, self._has_other_work)

    def _has_other_work(self) -> bool:
        return self._stopping.is_set() or self._background.is_paused()

    def _run(self, step: Callable[[int], None], process_lock: Lock, wake: Event) -> None:
        """The loop of a thread: call `step` with the time in Unix ms every TICK_S seconds, or earlier if `wake` is
        set."""
        while not self._stopping.is_set():
            wake.wait(TICK_S)
            if wake is not self._stopping:
                wake.clear()
            try:
                with process_lock:
                    step(int(time.time() * 1000))
            except Stopped:
                return
            except (OSError, TriptychError) as error:
                self.failures += 1
                event(logging.ERROR, "upkeep failed, trying again", reason=str(error), in_s=RETRY_S)
                self._stopping.wait(RETRY_S)
            except CorruptBlock as error:
                self._contents.set_aside(error.block, error.reason)
            except Exception:
                # After any error, the samples are still in the journal and in memory, so the shard goes on serving.
                self.failures += 1
                event(logging.ERROR, "upkeep failed", trace=True, in_s=RETRY_S)
                self._stopping.wait(RETRY_S)


def _at_low_priority(work: Callable[..., None], *args: Any) -> None:
    with suppress(OSError):  # the process may already have a lower priority, which it then keeps
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
    work(*args)
