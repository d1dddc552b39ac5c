"""Lists of series, label names and label values, served without aiohttp (coordinator/direct/requests.py).

Dashboards request such lists for their variables. A list is served here unless it was long the last time. Gate,
deadline and the list of running queries work as with aiohttp.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from aiohttp import web
from multidict import MultiDict

from coordinator.api import lists, parameters
from coordinator.api.series import LABELS, SERIES, VALUES, series_listing, texts_listing
from coordinator.context import Context
from coordinator.direct.large_answers import LargeAnswers
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import (
    FORM_BYTES_MAX,
    JSON_HEADERS,
    LABEL_VALUES,
    Headers,
    LeftToAiohttp,
    has_parameters_only,
    label_in,
)
from coordinator.fanout.prompt_futures import PromptFuture, PromptTask
from coordinator.http.responses import BODY_BYTES_MAX
from coordinator.limits.admission import Holder
from coordinator.queries.running import RunningQuery
from shared.errors import TriptychError

MakeListing = Callable[[], Awaitable[lists.Listing]]


@dataclass(slots=True)
class _ListWork:
    context: Context
    large: LargeAnswers[int]
    identity: int
    listing: MakeListing
    listed_as: str
    summary: str
    gzip: bool
    headers: Headers = JSON_HEADERS
    more_bytes: int = 0
    running: RunningQuery | None = None

    def begin(self, holder: Holder) -> PromptFuture[web.Response]:
        return PromptTask(self._respond(holder))

    def listed(self, running: RunningQuery) -> None:
        self.running = running

    async def _respond(self, holder: Holder) -> web.Response:
        assert self.running is not None, "a task starts only after the code that created it has returned"
        return await lists.made(self.context, holder, await self.listing(), self.running, gzip=self.gzip)

    def body(self, result: web.Response) -> bytes:
        assert isinstance(result.body, bytes)
        if len(result.body) > BODY_BYTES_MAX:
            self.large.note(self.identity)
            raise LeftToAiohttp
        self.headers = tuple(result.headers.items())
        return result.body


class DirectLists:
    """For the event loop's thread only. `listing`: makes the listing from the parameters of a request, and from the
    label in its path if it has one."""

    is_read = True
    encoding = ""
    body_bytes_max = FORM_BYTES_MAX

    def __init__(
        self, context: Context, path: str, method: str, listing: Callable[..., Awaitable[lists.Listing]]
    ) -> None:
        self._context = context
        self.path = path
        self._method = method
        self._listing = listing
        self._large: LargeAnswers[int] = LargeAnswers()

    def takes(self, head: PlainHead) -> bool:
        return has_parameters_only(head) and (head.method == "GET" or self.path != LABEL_VALUES)

    def work(self, head: PlainHead, body: bytes) -> _ListWork | None:
        """The list; None if its parameters are invalid, or if it was long the last time."""
        identity = hash((head.path, head.query, body))
        if identity in self._large:
            return None
        try:
            fields = MultiDict([*parameters.pairs(body), *parameters.pairs(head.query)])
        except TriptychError:
            return None
        label = (label_in(head.path),) if self.path == LABEL_VALUES else ()
        listing = partial(self._listing, fields, *label)
        summary = lists.selectors_of(fields)
        return _ListWork(self._context, self._large, identity, listing, self._method, summary, head.takes_gzip)


def direct_lists(context: Context) -> tuple[DirectLists, DirectLists, DirectLists]:
    of_series = partial(series_listing, settings=context.settings)
    return (
        DirectLists(context, "/api/v1/series", SERIES, of_series),
        DirectLists(context, "/api/v1/labels", LABELS, texts_listing),
        DirectLists(context, LABEL_VALUES, VALUES, texts_listing),
    )
