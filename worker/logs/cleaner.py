"""The thread that removes records which keys' starts have made invisible, for all shards of a worker."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from threading import Event, Lock, Thread, get_native_id

from shared.errors import TriptychError
from shared.telemetry import event
from worker.logs import cleaning
from worker.logs.cleaning import CleanPart

NICENESS = 10
"""Of the thread, so that threads that answer requests go first."""
CHECK_EVERY_S = 5.0
"""Parts are also asked without a new start: one may wait until the records in memory have been gathered."""


class Cleaner:
    """Has its parts remove what is gone, a slice at a time, in one thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # held during a slice: a part that has left is not at work any more
        self._parts: list[CleanPart] = []
        self._work = Event()
        self._ended = Event()
        self.failures = 0
        """Slices that failed; they are tried again."""

    def join(self, part: CleanPart) -> None:
        """Clean this part until it leaves. The first part starts the thread."""
        with self._lock:
            self._parts.append(part)
            if len(self._parts) == 1:
                self._ended = Event()
                Thread(target=self._run, args=(self._ended,), name="log-cleaner", daemon=True).start()

    def leave(self, part: CleanPart) -> None:
        """Return when the part is not at work. The thread ends soon after the last one has left."""
        with self._lock:
            self._parts.remove(part)
            if not self._parts:
                self._ended.set()
                self._work.set()

    def wake(self) -> None:
        """There are new starts."""
        self._work.set()

    def _run(self, ended: Event) -> None:
        with suppress(OSError):  # a container may refuse this; the thread then has the usual priority
            os.setpriority(os.PRIO_PROCESS, get_native_id(), NICENESS)
        while not ended.is_set():
            for part in list(self._parts):
                while self._slice(part):
                    pass
            self._work.wait(CHECK_EVERY_S)
            self._work.clear()

    def _slice(self, part: CleanPart) -> bool:
        with self._lock:
            if part not in self._parts:
                return False
            try:
                return cleaning.clean(part)
            except TriptychError as error:
                self.failures += 1
                event(logging.ERROR, "deleted records of the log could not be removed yet", why=error)
                return False
