"""Remote writes that are served without aiohttp (coordinator/direct/requests.py).

Nearly all of them have samples of known series only, which kernels split at once (`coordinator.series.known_samples`,
`coordinator.series.request_templates`). All of them, also those with errors, are served by the same functions that
aiohttp's handlers use (`coordinator.api.write`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordinator.api import write
from coordinator.context import Context
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import Headers
from coordinator.fanout.prompt_futures import PromptFuture, PromptTask
from coordinator.headers.negotiation import REMOTE_WRITE
from coordinator.limits.admission import Holder
from coordinator.queries.running import RunningQuery
from coordinator.series import decompression
from coordinator.series.lessons import Receipt
from coordinator.series.remote_write_v2 import MESSAGE
from coordinator.series.split_request import SplitRequest
from shared.errors import TriptychError

PATH = "/api/v1/write"
BODY_BYTES_MAX, DECOMPRESSED_BYTES_MAX = 512 << 10, 1 << 20
"""Limits on the body as sent and decompressed. One of more than `write.INLINE_BYTES_MAX` is split in a thread."""
_IS_SECOND = {"": False, **{f"proto={message}": message == MESSAGE for message in write.MESSAGES}}
"""Parameters of the Content-Type → whether the message is of version 2.0."""


class _KnownWrite(PromptFuture[Mapping[str, str]]):
    """A write of samples of known series only. It needs no task, and ends in the same iteration of the event loop in
    which the workers' replies arrive. `again`: splits the request once more if its series numbers are stale."""

    def __init__(self, context: Context, split_request: SplitRequest, again: write.Again) -> None:
        super().__init__()
        self._service, self._split_request, self._again = context, split_request, again
        stored = context.samples.submit({}, split_request.known)
        self._under_way: asyncio.Future[Any] = stored
        stored.at_once(self._on_stored)

    def _on_stored(self, stored: asyncio.Future[Receipt]) -> None:
        if self.done():
            return
        if stored.cancelled() or stored.exception() is not None:
            self._over(stored)
        elif not stored.result().epochs:
            self._service.telemetry.series_by_number += self._split_request.known_series
            self._over(stored)
        else:
            learning = write.learn_from(self._service, self._split_request, self._again, stored.result())
            self._under_way = asyncio.ensure_future(learning)
            self._under_way.add_done_callback(self._over)

    def _over(self, ended: asyncio.Future[Any]) -> None:
        """The write has ended: everything is stored, or it has failed."""
        if self.done():
            return
        if ended.cancelled():
            super().cancel()
        elif (error := ended.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(write.count_known(self._service, self._split_request))

    def cancel(self, msg: Any = None) -> bool:
        is_cancelled = super().cancel(msg)
        if is_cancelled:
            self._under_way.cancel()
        return is_cancelled


@dataclass(slots=True)
class _WriteWork:
    """`raw`: the compressed body. `more_bytes`: its decompressed size. `is_second`: whether it is of version 2.0."""

    context: Context
    raw: bytes
    more_bytes: int
    is_second: bool
    listed_as: str = ""
    summary: str = ""
    headers: Headers = ()

    def begin(self, holder: Holder) -> PromptFuture[Mapping[str, str]]:
        body = write.Body(self.raw, self.more_bytes, partial(self.context.admission.hold, holder))
        split_request = write.begin(self.context, body, is_second=self.is_second)
        if isinstance(split_request, SplitRequest) and split_request.known is not None:
            return _KnownWrite(
                self.context, split_request, write.split_again(self.context, body, is_second=self.is_second)
            )
        return PromptTask(write.finish(self.context, body, split_request, is_second=self.is_second))

    def listed(self, running: RunningQuery) -> None:
        raise AssertionError("a write is no query")

    def body(self, result: Mapping[str, str]) -> None:
        self.headers = tuple(result.items())


class DirectWrites:
    """For the event loop's thread only."""

    path = PATH
    is_read = False
    encoding = "snappy"
    body_bytes_max = BODY_BYTES_MAX

    def __init__(self, context: Context) -> None:
        self._context = context

    def takes(self, head: PlainHead) -> bool:
        is_known = head.media_type == REMOTE_WRITE and head.type_parameters.strip() in _IS_SECOND
        return head.method == "POST" and is_known and not head.query

    def work(self, head: PlainHead, body: bytes) -> _WriteWork | None:
        """The write; None if it is large, or if its body does not begin with a length."""
        try:
            size = decompression.decompressed_size(body)
        except TriptychError:
            return None
        if size > min(DECOMPRESSED_BYTES_MAX, self._context.settings.decompressed_bytes_max):
            return None
        return _WriteWork(self._context, body, size, _IS_SECOND[head.type_parameters.strip()])
