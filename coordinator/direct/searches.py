"""Searches for one vector that are served without aiohttp (coordinator/direct/requests.py).

The searches of a client usually differ only in the numbers of their vectors. Therefore the text around the vector is
parsed once and cached, and the numbers of all searches of a batch are parsed together when the batch is sent.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import orjson

from coordinator.api.vector_bodies import THREAD_BYTES_MIN, json_body
from coordinator.context import Context
from coordinator.direct.large_answers import LargeAnswers
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import BODY_TYPES, JSON_HEADERS, Headers, LeftToAiohttp
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.headers.negotiation import PROTOBUF
from coordinator.http.responses import BODY_BYTES_MAX
from coordinator.limits.admission import Holder
from coordinator.queries.running import RunningQuery
from coordinator.vectors.answers import hits_json
from coordinator.vectors.batching import Found, SearchKind
from coordinator.vectors.search import SearchRequest, from_json, vectors_of
from shared.errors import TriptychError
from shared.messages.vectors import Collection, Floats

PATH = "/api/v1/vector/search"
SEARCH_BYTES_MAX = THREAD_BYTES_MIN - 1
READ_LATER_BYTES_MAX = 8 << 10
"""Longer vectors are parsed when they arrive. A batch of 128 then has at most 1 MB of text, whose numbers are parsed in
1 ms."""
SHAPE_BYTES_MAX = 2 << 10
SHAPES_CACHED = 256
"""Searches with other filters have other shapes. Parsing a shape that is not cached takes some tens of microseconds."""
DEPTH_MAX = 100
"""The most results of a search served here. Even with the longest ids, if JSON escapes all their bytes, they take less
than 64 KiB without attributes."""

_VECTOR = re.compile(rb'"vector"[ \t\r\n]*:[ \t\r\n]*(?=\[)')
_ARRAY = msgspec.json.Decoder(msgspec.Raw)


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A search without the numbers of its vector."""

    request: SearchRequest
    summary: str


@lru_cache(SHAPES_CACHED)
def shape_of(before: bytes, after: bytes) -> Shape | None:
    """The search whose body is `before`, an array of numbers and `after`. None if that array is not its only vector, or
    if aiohttp serves it: if it is invalid, has a text or groups, or has many results."""
    try:
        first, second = (from_json(b"%b[%d]%b" % (before, number, after)) for number in (1, 2))
    except TriptychError:
        return None
    if first.flat.tolist() != [1.0] or second.flat.tolist() != [2.0] or first.batch or first.id:
        return None
    is_plain = first.text is None and first.refinement.group is None and first.depth <= DEPTH_MAX
    return Shape(first, first.summary()) if is_plain else None


def split_vector(body: bytes) -> tuple[Shape, bytes] | None:
    """Split the body of a search: (the search without its vector, the vector as a JSON array). None if aiohttp serves
    it."""
    match = _VECTOR.search(body)
    if match is None:
        return None
    start = match.end()
    end = body.find(b"]", start) + 1
    if not end or len(body) - (end - start) > SHAPE_BYTES_MAX:
        return None
    shape = shape_of(body[:start], body[end:])
    if shape is None:
        return None
    text = body[start:end]
    try:
        _ARRAY.decode(text)  # the parser of the numbers relies on valid JSON
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return shape, text


@dataclass(slots=True)
class _SearchWork:
    context: Context
    large: LargeAnswers[bytes]
    shape: Shape
    kind: SearchKind
    queries: Floats | bytes
    summary: str
    listed_as: str = "vector.search"
    headers: Headers = JSON_HEADERS
    more_bytes: int = 0
    running: RunningQuery | None = None

    def begin(self, holder: Holder) -> PromptFuture[Found]:
        return self.context.vectors.begin(self.kind, self.queries)

    def listed(self, running: RunningQuery) -> None:
        running.enter("running")
        self.running = running

    def body(self, result: Found) -> bytes:
        if self.running is not None:
            self.running.enter("rendering")
        collection = self.kind.body.collection
        answer = self.context.vectors.searched(self.shape.request, collection, result, partial=True)
        hits = answer.lists[0]
        results = "" if hits.contents_bytes > BODY_BYTES_MAX else hits_json(hits, collection.metric)
        if not results or len(results) > BODY_BYTES_MAX:
            self.large.note(self.kind.key)
            raise LeftToAiohttp
        return json_body({"results": orjson.Fragment(results)}, answer.warnings, answer.infos)


class DirectSearches:
    """For the event loop's thread only."""

    path = PATH
    is_read = True
    encoding = ""
    body_bytes_max = SEARCH_BYTES_MAX

    def __init__(self, context: Context) -> None:
        self._context = context
        self._kind = lru_cache(SHAPES_CACHED)(self._kind_of)
        self._large: LargeAnswers[bytes] = LargeAnswers()

    def _kind_of(self, shape: Shape, collection: Collection) -> SearchKind:
        return self._context.vectors.kind(shape.request, collection)

    def takes(self, head: PlainHead) -> bool:
        return head.method == "POST" and head.media_type in BODY_TYPES and not head.query

    def work(self, head: PlainHead, body: bytes) -> _SearchWork | None:
        """The search; None unless its shape is plain, its collection exists and searches of its kind have short
        results."""
        shape_and_vector = None if head.media_type == PROTOBUF else split_vector(body)
        if shape_and_vector is None:
            return None
        shape, text = shape_and_vector
        collection = self._context.vectors.at_hand(shape.request.collection)
        if collection is None:
            return None
        kind = self._kind(shape, collection)
        if kind.key in self._large:
            return None
        try:
            queries = text if len(text) <= READ_LATER_BYTES_MAX else vectors_of([text], collection)
        except TriptychError:
            return None
        return _SearchWork(self._context, self._large, shape, kind, queries, shape.summary)
