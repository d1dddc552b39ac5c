"""Background work on a worker's log: syncing and gathering, in one thread for all shards of a write-ahead log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol

from shared.errors import Unavailable
from shared.telemetry import event
from worker.logs.cleaner import Cleaner
from worker.storage.faces import WorkerJournal

SYNC_AFTER_S = 0.08
"""Usually the coordinator requests a sync earlier. If it does not, the worker syncs after this time."""
CHECK_EVERY_S = 5.0
"""Parts are also checked without new records: an idle shard may block the release of a write-ahead log that others
fill."""


class Part(Protocol):
    def keep_up(self) -> None: ...


class Keeper:
    """Syncs the log if no request has synced it in time, and has parts gather when they are due."""

    def __init__(self, log: WorkerJournal) -> None:
        self._log = log
        self._lock = Lock()
        self._parts: list[Part] = []
        self._work = Event()
        self._closing = Event()
        self._dirty = False
        self.failures = 0
        """Syncs of the log that failed, and attempts of a part to gather that did."""
        self.cleaner = Cleaner()
        self._thread: Thread | None = None

    def join(self, part: Part) -> None:
        """Look after this part until it leaves. The first part starts the thread."""
        with self._lock:
            self._parts.append(part)
            if self._thread is None:
                self._closing.clear()
                self._thread = Thread(target=self._keep, name="log-keeper", daemon=True)
                self._thread.start()

    def leave(self, part: Part) -> None:
        """Stop looking after this part. The last part ends the thread."""
        with self._lock:
            self._parts.remove(part)
            if self._parts or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._closing.set()
            self._work.set()
            thread.join()

    def written(self) -> None:
        """Note that the log has unsynced records."""
        self._dirty = True
        self._work.set()

    def wake(self) -> None:
        """Check soon whether a part is due."""
        self._work.set()

    def sync(self) -> None:
        """Return when everything that was written before is on disk. Raises Unavailable."""
        self._dirty = False
        try:
            self._log.sync()
        except Exception:
            self._dirty = True
            raise

    def _keep(self) -> None:
        while not self._closing.is_set():
            self._work.wait(CHECK_EVERY_S)
            self._work.clear()
            if self._closing.wait(SYNC_AFTER_S):
                return
            refusals: list[str] = []
            if not self._dirty or self._try(self.sync, refusals):
                for part in list(self._parts):
                    self._try(part.keep_up, refusals)
            if refusals:  # one line for all: a full disk refuses every part, in 12 rounds a second
                why, more = refusals[0], len(refusals) - 1
                event(logging.ERROR, "the log could not be synced or gathered", why=why, more=more)
                self._work.set()

    def _try(self, step: Callable[[], object], refusals: list[str]) -> bool:
        """Run a step of a round, and add to `refusals` why it was refused; False if it failed. No failure ends the
        thread: without it, records would stay unsynced and the log would grow without bound."""
        try:
            step()
        except Unavailable as error:
            self.failures += 1
            refusals.append(str(error))
        except Exception as error:  # a defect; the next check, in CHECK_EVERY_S, tries again
            self.failures += 1
            event(logging.ERROR, "the log could not be synced or gathered", trace=True, why=error)
        else:
            return True
        return False
