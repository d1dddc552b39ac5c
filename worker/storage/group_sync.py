"""Group commit: one fsync for all callers that wait at the same time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from time import perf_counter

from shared.measurements import Latencies


class GroupSync:
    """The first caller becomes the leader and calls `fsync`; the others wait for a sync that began after their call.

    After a sync has failed, no other sync begins: the kernel reports a failed write once, and lets the next fsync of
    the same file succeed although the bytes are not on the disk. Every caller whose writes no earlier sync has covered
    gets the same exception, now and later. To sync again, reopen the file and make a new `GroupSync`.
    """

    def __init__(self, fsync: Callable[[], None]) -> None:
        self._fsync = fsync
        self._condition = Condition()
        self._tickets = 0
        self._synced = 0
        self._is_syncing = False
        self._failure: BaseException | None = None
        self.latencies = Latencies()
        """How long each fsync took, failed ones included."""

    @property
    def has_failed(self) -> bool:
        return self._failure is not None

    def sync(self) -> None:
        """Return when a sync that began after this call has ended. Raises what `fsync` raised, in this call or in an
        earlier one."""
        with self._condition:
            self._tickets += 1
            ticket = self._tickets
            while self._synced < ticket and self._is_syncing:
                self._condition.wait()
            if self._synced >= ticket:
                return
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._is_syncing = True
            last_ticket = self._tickets
        failure: BaseException | None = None
        started = perf_counter()
        try:
            self._fsync()
        except BaseException as error:
            failure = error
            raise
        finally:
            duration_s = perf_counter() - started
            with self._condition:
                self.latencies.add(duration_s)
                self._failure = failure
                if failure is None:
                    self._synced = max(self._synced, last_ticket)
                self._is_syncing = False
                self._condition.notify_all()
