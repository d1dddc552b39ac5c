"""Producers of the log: appends that are made once, however often they are sent."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

from triptych.calls import Call, Steps
from triptych.log import Appended, append_call
from triptych.protobuf import delimited, whole
from triptych.records import Appendable, encoded

MAX_BYTES = 256


class Numbers:
    """The numbers of a producer's batches. A batch that failed keeps its number for as long as it is sent again; any
    other batch gets the next one, since an earlier one may have been appended after all."""

    def __init__(self, name: str = "", sequence: int = 0) -> None:
        self.name = name or f"client-{uuid.uuid4()}"
        self.next_sequence = sequence
        self._failed = b""
        if len(self.name.encode()) > MAX_BYTES:
            raise ValueError(f"the producer's name has {len(self.name.encode())} bytes; it may have {MAX_BYTES}")

    def appending(self, records: Iterable[Appendable], await_durable: bool = False) -> Steps[Appended]:
        content = encoded(records) + (whole(2, 1) if await_durable else b"")
        if self._failed and content != self._failed:
            self.next_sequence += 1
        self._failed = content
        body = content + delimited(3, self.name.encode()) + whole(4, self.next_sequence)
        call: Call[Appended] = append_call(body, repeatable=True)
        appended: Appended = yield call
        self._failed = b""
        self.next_sequence += 1
        return appended
