"""Group commit: one fsync for all callers that wait at the same time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition
from time import perf_counter

from shared.measurements import Latencies


class GroupSync:
    """The first caller becomes the leader and calls `fsync`; the others wait for a sync that began after their call.

    After a sync has failed, no other begins: the kernel reports a failed write once, and lets the next fsync of the
    same file succeed although the bytes are not on the disk. Every caller whose writes no earlier sync has covered
    gets the same exception, now and later. To sync again, open the file again and make a new `GroupSync`.
    """

    def __init__(self, fsync: Callable[[], None]) -> None:
        self._fsync = fsync
        self._condition = Condition()
        self._asked = 0
        self._synced = 0
        self._busy = False
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
            self._asked += 1
            ticket = self._asked
            while self._synced < ticket and self._busy:
                self._condition.wait()
            if self._synced >= ticket:
                return
            if self._failure is not None:
                raise self._failure.with_traceback(None)
            self._busy = True
            upto = self._asked
        failure: BaseException | None = None
        started = perf_counter()
        try:
            self._fsync()
        except BaseException as error:
            failure = error
            raise
        finally:
            took_s = perf_counter() - started
            with self._condition:
                self.latencies.add(took_s)
                self._failure = failure
                if failure is None:
                    self._synced = max(self._synced, upto)
                self._busy = False
                self._condition.notify_all()
