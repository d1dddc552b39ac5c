"""Producers of the log: appends that are made exactly once, however often they are sent."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

from triptych.calls import Call, Steps
from triptych.errors import BadRequest
from triptych.forks import renew_in_forks
from triptych.log import Appended, append_call
from triptych.protobuf import delimited, whole
from triptych.records import Appendable, encoded

MAX_BYTES = 256
LATER_MAX = 7
"""A failed batch keeps its number until this many later numbers have been used: the server remembers the answers to a
producer's 8 highest numbers, and refuses a number below them."""


class Numbers:
    """The numbers of a producer's batches. A batch that failed gets the same number when it is sent again; any other
    batch gets a new one, since the one that failed may have been appended after all.

    A forked process makes up a name of its own, unless the name was given.
    """

    def __init__(self, name: str = "", sequence: int = 0) -> None:
        self.name = name or _made_up()
        self.next_sequence = sequence
        self._failed: dict[bytes, int] = {}
        """Digest of a batch → its number. It includes batches that are under way, because their callers may give up at
        any time."""
        if len(self.name.encode()) > MAX_BYTES:
            raise ValueError(f"the producer's name has {len(self.name.encode())} bytes; it may have {MAX_BYTES}")
        if not name:
            renew_in_forks(self, Numbers._renew)

    def _renew(self) -> None:
        self.name, self.next_sequence, self._failed = _made_up(), 0, {}

    def appending(self, records: Iterable[Appendable], await_durable: bool = False) -> Steps[Appended]:
        content = encoded(records) + (whole(2, 1) if await_durable else b"")
        digest = hashlib.blake2b(content, digest_size=32).digest()
        number = self._number_of(digest)
        try:
            appended: Appended = yield self._call(content, number)
        except BadRequest:
            if number == self.next_sequence:
                raise
            # The server refuses a number below all that it remembers, also if the batch has never reached it. If it had
            # stored the batch, it would remember the number.
            self._failed.pop(digest, None)
            number = self._number_of(digest)
            appended = yield self._call(content, number)
        self._failed.pop(digest, None)
        self.next_sequence = max(self.next_sequence, number + 1)
        return appended

    def _call(self, content: bytes, number: int) -> Call[Appended]:
        return append_call(content + delimited(3, self.name.encode()) + whole(4, number), repeatable=True)

    def _number_of(self, digest: bytes) -> int:
        if digest not in self._failed:
            if self.next_sequence in self._failed.values():
                self.next_sequence += 1
            first = self.next_sequence - LATER_MAX
            self._failed = {batch: number for batch, number in self._failed.items() if number >= first}
            self._failed[digest] = self.next_sequence
        return self._failed[digest]


def _made_up() -> str:
    return f"client-{uuid.uuid4()}"
