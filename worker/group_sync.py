"""One fsync for all callers that wait at the same time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition


class GroupSync:
    """The first caller becomes the leader; the rest wait for a sync that began after they asked."""

    def __init__(self, fsync: Callable[[], None]) -> None:
        self._fsync = fsync
        self._condition = Condition()
        self._asked = 0
        self._synced = 0
        self._busy = False

    def sync(self) -> None:
        """Raises what `fsync` raises."""
        with self._condition:
            self._asked += 1
            ticket = self._asked
            while self._synced < ticket and self._busy:
                self._condition.wait()
            if self._synced >= ticket:
                return
            self._busy = True
            upto = self._asked
        try:
            self._fsync()
        except BaseException:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
            raise
        with self._condition:
            self._synced = max(self._synced, upto)
            self._busy = False
            self._condition.notify_all()
