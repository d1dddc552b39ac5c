"""Remote writes of version 1.0 that are served without aiohttp (coordinator/direct_requests.py).

Nearly all of them have samples of known series only, which kernels cut at once (`coordinator.series.known_samples`).
What is other than that, or wrong, goes through the functions that serve it for aiohttp, too (`coordinator.api.write`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from coordinator.admission import Holder
from coordinator.api import write
from coordinator.context import Context
from coordinator.direct_requests import Headers
from coordinator.negotiation import REMOTE_WRITE
from coordinator.plain_heads import PlainHead
from coordinator.queries.running import RunningQuery
from coordinator.series import decompression, known_samples
from coordinator.series.remote_write import Cut
from shared.errors import TriptychError
from shared.wire import Frame

PATH = "/api/v1/write"
BODY_BYTES_MAX = 256 << 10
"""As it is sent; decompressed it is at most `write.INLINE_BYTES_MAX`."""


@dataclass(slots=True)
class _WriteWork:
    """`raw`: the body; `more_bytes`: what it has decompressed."""

    context: Context
    raw: bytes
    more_bytes: int
    listed_as: str = ""
    summary: str = ""
    headers: Headers = ()

    def begin(self, holder: Holder) -> asyncio.Future[Mapping[str, str]]:
        context, settings = self.context, self.context.settings
        try:
            body = decompression.decompress(self.raw, settings.decompressed_bytes_max)
        except TriptychError as error:
            write.tell(error, write.headers_of(0, 0, 0))
            raise
        known = known_samples.read(body, settings.shards, context.series_references)
        return asyncio.ensure_future(self._usual(body) if known is None else self._written(write.known_cut(known)))

    async def _usual(self, body: Frame) -> Mapping[str, str]:
        try:
            cut = await write.cut_small(self.context, body)
        except TriptychError as error:
            write.tell(error, write.headers_of(0, 0, 0))
            raise
        return await self._written(cut)

    async def _written(self, cut: Cut) -> Mapping[str, str]:
        return await write.written(self.context, cut, write.cut_again(self.context, self.raw, self.more_bytes))

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
        is_first = head.media_type == REMOTE_WRITE and not head.type_parameters
        return head.method == "POST" and is_first and not head.query

    def work(self, head: PlainHead, body: bytes) -> _WriteWork | None:
        """The write; None for one that is large, or begins with no length."""
        try:
            size = decompression.decompressed_size(body)
        except TriptychError:
            return None
        if size > min(write.INLINE_BYTES_MAX, self._context.settings.decompressed_bytes_max):
            return None
        return _WriteWork(self._context, body, size)
