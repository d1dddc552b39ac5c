"""The thread that removes the records below the start of their key from the stores of all shards of a worker."""

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
"""Parts are also cleaned without a new start: an earlier one may have waited for a gathering of the records in
memory."""


class Cleaner:
    """Removes the gone records of its parts, a slice at a time, in one thread."""

    def __init__(self) -> None:
        self._lock = Lock()  # held during a slice, so that no slice of a part runs once the part has left
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
        """Return when no slice of the part runs any more. The thread ends soon after the last part has left."""
        with self._lock:
            self._parts.remove(part)
            if not self._parts:
                self._ended.set()
                self._work.set()

    def wake(self) -> None:
        """Look for gone records soon: there are new starts."""
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
            except Exception as error:  # also a defect or unknown damage: the thread goes on with the other parts
                self.failures += 1
                is_defect = not isinstance(error, TriptychError)
                event(logging.ERROR, "deleted records of the log could not be removed yet", trace=is_defect, why=error)
                return False
