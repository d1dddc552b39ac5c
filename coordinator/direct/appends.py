"""Small appends to the log that are served without aiohttp (coordinator/direct/requests.py)."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from coordinator.api.log.append import WALKED_BYTES_MAX, read_at_once
from coordinator.context import Context
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import BODY_TYPES, JSON_HEADERS, Headers
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.headers.negotiation import PROTOBUF
from coordinator.limits.admission import Holder
from coordinator.log import records
from coordinator.log.record_forms import hints
from coordinator.log.records import BESIDE_BYTES_MAX, Append
from coordinator.queries.running import RunningQuery
from shared.errors import TriptychError

PATH = "/api/v1/log/append"


@dataclass(slots=True)
class _AppendWork:
    context: Context
    batch: Append
    listed_as: str = ""
    summary: str = ""
    headers: Headers = JSON_HEADERS
    more_bytes: int = 0

    def begin(self, holder: Holder) -> PromptFuture[int]:
        return self.context.log.begin(self.batch)

    def listed(self, running: RunningQuery) -> None:
        raise AssertionError("an append is no query")

    def body(self, result: int) -> bytes:
        """`result`: the number of the batch's first record."""
        count = self.batch.count
        self.context.telemetry.records_in += count
        return orjson.dumps({"status": "success", "recordsAppended": count, "startSequence": result})


class DirectAppends:
    """For the event loop's thread only."""

    path = PATH
    is_read = False
    encoding = ""
    body_bytes_max = WALKED_BYTES_MAX

    def __init__(self, context: Context) -> None:
        self._context = context

    def takes(self, head: PlainHead) -> bool:
        return head.method == "POST" and head.media_type in BODY_TYPES and not head.query

    def work(self, head: PlainHead, body: bytes) -> _AppendWork | None:
        """The append. None if it is invalid, has a producer or would be answered with a hint, or if the state of the
        log is not known yet."""
        # Batches of a producer wait for each other. Usual clients name the producer before or after all records.
        both_ends = body if len(body) <= 2 * BESIDE_BYTES_MAX else body[:BESIDE_BYTES_MAX] + body[-BESIDE_BYTES_MAX:]
        if not self._context.log.knows_state or b"producer" in both_ends:
            return None
        settings = self._context.settings
        try:
            batch = records.one_plain(body, settings) if head.media_type != PROTOBUF else None
            batch = batch or read_at_once(head.media_type, body, settings)
        except TriptychError:
            return None
        if batch is None or batch.producer or (head.media_type != PROTOBUF and hints(batch.records)):
            return None
        return _AppendWork(self._context, batch)
