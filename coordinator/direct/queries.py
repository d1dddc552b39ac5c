"""Queries that are served without aiohttp (coordinator/direct/requests.py): those that dashboards and alert rules
repeat.

A query is served here if its last evaluation was quick and its result was small. Plan, gate, cost and the list of
running queries work as with aiohttp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coordinator.api import parameters
from coordinator.api.query import Told, evaluated, instant, over_range
from coordinator.context import Context
from coordinator.direct.large_answers import LargeAnswers
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import FORM_BYTES_MAX, JSON_HEADERS, Headers, LeftToAiohttp, has_parameters_only
from coordinator.fanout.prompt_futures import PromptFuture, PromptTask
from coordinator.headers.negotiation import boolean
from coordinator.http.responses import BODY_BYTES_MAX
from coordinator.http.streaming import Body
from coordinator.limits.admission import Holder
from coordinator.queries.evaluation import Query, is_quick, is_quickly_parsed
from coordinator.queries.running import RunningQuery
from shared.errors import TriptychError
from shared.settings import Settings

Read = Callable[[Mapping[str, str], Settings], Query]
_PLAIN: Headers = (*JSON_HEADERS, ("Vary", "Accept-Encoding"))
_GZIP: Headers = (*_PLAIN, ("Content-Encoding", "gzip"))


@dataclass(slots=True)
class _QueryWork:
    context: Context
    large: LargeAnswers[int]
    query: Query
    told: Told
    running: RunningQuery | None = None
    headers: Headers = _PLAIN
    more_bytes: int = 0

    @property
    def listed_as(self) -> str:
        return "range" if self.query.is_range else "instant"

    @property
    def summary(self) -> str:
        return self.query.text

    def begin(self, holder: Holder) -> PromptFuture[Body]:
        return PromptTask(self._evaluated(holder))

    def listed(self, running: RunningQuery) -> None:
        self.running = running

    async def _evaluated(self, holder: Holder) -> Body:
        assert self.running is not None, "a task starts only after the code that created it has returned"
        body, _ = await evaluated(self.context, holder, self.query, self.told, self.running)
        return body

    def body(self, result: Body) -> bytes:
        if not result.whole or len(result.first) > BODY_BYTES_MAX:
            self.large.note(self.query.identity())
            raise LeftToAiohttp
        if result.encoding:
            self.headers = _GZIP
        assert isinstance(result.first, bytes)
        return result.first


class DirectQueries:
    """For the event loop's thread only. `read`: makes a query from its parameters."""

    is_read = True
    encoding = ""
    body_bytes_max = FORM_BYTES_MAX

    def __init__(self, context: Context, path: str, read: Read) -> None:
        self._context = context
        self.path = path
        self._read = read
        self._large: LargeAnswers[int] = LargeAnswers()

    def takes(self, head: PlainHead) -> bool:
        return has_parameters_only(head)

    def work(self, head: PlainHead, body: bytes) -> _QueryWork | None:
        """The query; None if it is invalid, was not quick the last time, or asks for more than its result."""
        try:
            fields = parameters.first_of_each(body, head.query)
            if "stats" in fields or boolean(fields, "explain", False):
                return None
            query = self._read(fields, self._context.settings)
        except TriptychError:
            return None
        if not is_quickly_parsed(query.text) or not is_quick(query) or query.identity() in self._large:
            return None
        return _QueryWork(self._context, self._large, query, Told(gzip=head.takes_gzip))


def direct_queries(context: Context) -> tuple[DirectQueries, DirectQueries]:
    """Instant and range queries."""
    return (
        DirectQueries(context, "/api/v1/query", instant),
        DirectQueries(context, "/api/v1/query_range", over_range),
    )
