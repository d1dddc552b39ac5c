"""bcrypt: the hashes in the files, and their comparison with secrets, which takes 50 ms or more.

Comparisons run in one thread of low priority, so that a flood of wrong passwords uses only spare CPU time. Only a few
comparisons may wait, and fewer of one client; all others are refused without a comparison.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import bcrypt

from shared.errors import ConfigError, Overloaded

COST_MAX = 15
"""A comparison takes 50 ms at cost 10, and twice as long with each step: 1.6 s at this cost."""
PASSWORD_BYTES_MAX = 72
"""bcrypt ignores all further bytes."""
WAITING_MAX = 32
WAITING_OF_CLIENT_MAX = 4
TIMEOUT_S = 60.0
"""More than all waiting comparisons can take at the highest cost."""
NICENESS = 10
_HASH = re.compile(r"\$2[abxy]\$(\d\d)\$[./A-Za-z0-9]{53}")


def check_hash(hashed: str, what: str) -> None:
    """Raise ConfigError if this is not a bcrypt hash of a cost that can be served. The text does not show the hash."""
    match = _HASH.fullmatch(hashed)
    if match is None:
        raise ConfigError(f"{what} is not a bcrypt hash; it must be such as $2b$10$… (60 characters)")
    if not 4 <= int(match[1]) <= COST_MAX:
        raise ConfigError(f"{what} has cost {int(match[1])}; it must be 4 to {COST_MAX}")


def is_match(secret: bytes, hashed: str) -> bool:
    """Whether this is the secret of the hash. The comparison takes the same time wherever the two differ."""
    try:
        return bcrypt.checkpw(secret[:PASSWORD_BYTES_MAX], hashed.encode())
    except ValueError:
        return False


class Comparisons:
    """The running and waiting comparisons. For the event loop's thread only."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "passwords", initializer=_lower_priority)
        self._waiting: Counter[str] = Counter()
        self.refused = 0

    def begin(self, client: str, secret: bytes, hashed: str) -> asyncio.Future[bool]:
        """Begin a comparison: whether the secret is that of the hash. Raises Overloaded if too many comparisons wait,
        in total or for this client."""
        total, of_client = self._waiting.total(), self._waiting[client]
        if total >= WAITING_MAX or of_client >= WAITING_OF_CLIENT_MAX:
            self.refused += 1
            whose, count, limit = (
                ("", total, WAITING_MAX)
                if total >= WAITING_MAX
                else (f" of {client}", of_client, WAITING_OF_CLIENT_MAX)
            )
            raise Overloaded(f"{count} new credentials{whose} are being checked, the limit is {limit}; try again later")
        self._waiting[client] += 1
        comparison = asyncio.get_running_loop().run_in_executor(self._thread, is_match, secret, hashed)
        comparison.add_done_callback(lambda _: self._note_end(client))
        return comparison

    def _note_end(self, client: str) -> None:
        self._waiting[client] -= 1
        if not self._waiting[client]:
            del self._waiting[client]

    def stop(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    """Lower the priority of this thread only: on Linux, each thread has its own."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
