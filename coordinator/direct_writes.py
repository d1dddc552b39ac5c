"""Remote writes of version 1.0 that are served without aiohttp (coordinator/direct_requests.py).

Nearly all of them have samples of known series only, which kernels cut at once (`coordinator.series.known_samples`).
What is other than that, or wrong, goes through the functions that serve it for aiohttp, too (`coordinator.api.write`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.api import write
from coordinator.context import Context
from coordinator.direct_requests import NoContent
from coordinator.negotiation import REMOTE_WRITE
from coordinator.series import decompression, known_samples
from coordinator.series.remote_write import Cut
from shared.errors import TriptychError
from shared.wire import Frame

PATH = "/api/v1/write"
BODY_BYTES_MAX = 256 << 10
"""As it is sent; decompressed it is at most `write.INLINE_BYTES_MAX`."""

Headers = Mapping[str, str]


@dataclass(slots=True)
class _WriteWork:
    """`raw`: the body; `more_bytes`: what it has decompressed."""

    context: Context
    raw: bytes
    more_bytes: int
    listed_as: str = ""
    summary: str = ""

    def begin(self) -> asyncio.Future[Headers]:
        context, settings = self.context, self.context.settings
        try:
            body = decompression.decompress(self.raw, settings.decompressed_bytes_max)
        except TriptychError as error:
            write.tell(error, write.headers_of(0, 0, 0))
            raise
        known = known_samples.read(body, settings.shards, context.series_references)
        return asyncio.ensure_future(self._usual(body) if known is None else self._written(write.known_cut(known)))

    async def _usual(self, body: Frame) -> Headers:
        try:
            cut = await write.cut_small(self.context, body)
        except TriptychError as error:
            write.tell(error, write.headers_of(0, 0, 0))
            raise
        return await self._written(cut)

    async def _written(self, cut: Cut) -> Headers:
        return await write.written(self.context, cut, write.cut_again(self.context, self.raw, self.more_bytes))

    def body(self, result: Headers) -> NoContent:
        return NoContent(tuple(result.items()))


class DirectWrites:
    """For the event loop's thread only."""

    path = PATH
    is_read = False
    media_types: Sequence[str] = (REMOTE_WRITE,)
    encoding = "snappy"
    body_bytes_max = BODY_BYTES_MAX

    def __init__(self, context: Context) -> None:
        self._context = context

    def work(self, media_type: str, body: bytes) -> _WriteWork | None:
        """The write; None for one that is large, or begins with no length."""
        try:
            size = decompression.decompressed_size(body)
        except TriptychError:
            return None
        if size > min(write.INLINE_BYTES_MAX, self._context.settings.decompressed_bytes_max):
            return None
        return _WriteWork(self._context, body, size)
