"""Gathers searches into batches: searches that differ only in their vectors share messages to the workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from coordinator.fanout.calls import FanOut
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.vectors.merging import MergedHits
from coordinator.vectors.search import vectors_of
from shared.errors import BadData, DeadlineExceeded
from shared.messages.vectors import Collection, Floats, SearchBody
from shared.telemetry import REQUEST_ID

BATCHES_IN_FLIGHT = 1
"""Batches under way for each kind of search; searches of a kind differ only in their vectors. Searches that arrive
meanwhile are gathered into the next batch, so that many small searches cost the workers little more than one."""
BATCH_MAX = 128
HOLD_S = 0.002
HOLD_SHARE = 0.9
"""Clients often send the next search as soon as they have an answer from a batch. So the next batch is held until this
share of the searches that were recently under way together has arrived, or for this long. Searches that come one after
the other are never held."""
QUEUES_MAX = 256  # kinds of search whose recent batches are remembered

Found = tuple[MergedHits, FanOut]
"""The results of the workers, and which of them were missing."""
Ask = Callable[[SearchBody, Floats], Awaitable[Found]]


@dataclass(frozen=True, slots=True, eq=False)
class SearchKind:
    """Searches that differ only in their vectors: their message to the workers, and the key that distinguishes
    kinds."""

    body: SearchBody
    key: bytes

    @classmethod
    def of(cls, body: SearchBody) -> SearchKind:
        return cls(body, msgspec.msgpack.encode(body))


class _Search(PromptFuture[Found]):
    """A search for one vector, and its answer. `queries`: float32[1, dimension], or in JSON. `http_request`: the id of
    its HTTP request. `expires`: on the event loop's clock. `batch`: the one with which it was sent."""

    def __init__(self, queries: Floats | bytes, expires: float) -> None:
        super().__init__()
        self.queries = queries
        self.http_request = REQUEST_ID.get()
        self.expires = expires
        self.batch: _Batch | None = None

    def cancel(self, msg: object = None) -> bool:
        """Take the search back: its client no longer waits for it."""
        is_canceled = super().cancel(msg)
        if is_canceled and self.batch is not None:
            self.batch.leave()
        return is_canceled


@dataclass(slots=True, eq=False)
class _Batch:
    """Searches that share a message. `awaited`: how many of them still have a waiting client."""

    searches: list[_Search]
    awaited: int
    task: asyncio.Task[None] | None = None

    def leave(self) -> None:
        """Note that a search was canceled. When all have been, the workers can stop."""
        self.awaited -= 1
        if not self.awaited and self.task is not None:
            # In a later turn: a task that is canceled before it has begun would not say that its batch is over.
            asyncio.get_running_loop().call_soon(self.task.cancel)


@dataclass(slots=True)
class _Queue:
    """Searches of one kind. `expiry`: the timer of the first one that may expire; the others have none of their own."""

    kind: SearchKind
    in_flight: list[_Batch] = field(default_factory=list)
    waiting: list[_Search] = field(default_factory=list)
    recent: float = 1.0  # searches that were recently under way together
    hold: asyncio.TimerHandle | None = None
    expiry: asyncio.TimerHandle | None = None


class SearchBatches:
    """Queues of searches, one for each kind. For the event loop's thread only."""

    def __init__(self, ask: Ask, timeout_s: float) -> None:
        """`ask` sends one search of several vectors, float32[queries, dimension], to the workers."""
        self._ask = ask
        self._timeout_s = timeout_s
        self._queues: dict[bytes, _Queue] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Cancel the batches under way."""
        for task in list(self._tasks):
            task.cancel()

    async def submit(self, body: SearchBody, queries: Floats) -> Found:
        """The results of the workers, and which of them were missing. Raises DeadlineExceeded, or what `ask` raises."""
        if body.text is not None or len(queries) > 1:
            return await self._ask(body, queries)
        return await self.begin(SearchKind.of(body), queries)

    def begin(self, kind: SearchKind, queries: Floats | bytes) -> PromptFuture[Found]:
        """As `submit`, for a search for one vector, float32[1, dimension] or in JSON. Those in JSON are read when their
        batch is sent, all at once; the future then has BadData for one that does not fit the collection. Canceling the
        future takes the search back."""
        queue = self._queues.get(kind.key)
        if queue is None:
            queue = self._queues[kind.key] = _Queue(kind)
        loop = asyncio.get_running_loop()
        search = _Search(queries, loop.time() + self._timeout_s)
        if queue.expiry is None:
            queue.expiry = loop.call_at(search.expires, self._expire, queue)
        queue.waiting.append(search)
        self._advance(queue)
        return search

    def _expire(self, queue: _Queue) -> None:
        """End the searches whose time is over, and set the timer for the next one's."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        searches = [search for batch in queue.in_flight for search in batch.searches] + queue.waiting
        unanswered = [search for search in searches if not search.done()]
        later = [search.expires for search in unanswered if search.expires > now]
        # Set before anybody is told: who is told may begin another search, which expires later.
        queue.expiry = loop.call_at(min(later), self._expire, queue) if later else None
        for search in unanswered:
            if search.expires <= now and not search.done():
                search.set_exception(DeadlineExceeded(f"the search took longer than {self._timeout_s:g} s"))

    def _advance(self, queue: _Queue, *, held: bool = False) -> None:
        while queue.waiting and len(queue.in_flight) < BATCHES_IN_FLIGHT:
            if not held and len(queue.waiting) < min(BATCH_MAX, HOLD_SHARE * queue.recent):
                if queue.hold is None:
                    queue.hold = asyncio.get_running_loop().call_later(HOLD_S, self._release, queue)
                return
            if queue.hold is not None:
                queue.hold.cancel()
                queue.hold = None
            awaited = [search for search in queue.waiting if not search.done()]
            searches, queue.waiting = awaited[:BATCH_MAX], awaited[BATCH_MAX:]
            if not searches:
                break
            batch = _Batch(searches, len(searches))
            queue.in_flight.append(batch)
            for search in searches:
                search.batch = batch
            batch.task = asyncio.create_task(self._run(queue, batch))
            self._tasks.add(batch.task)
            batch.task.add_done_callback(self._tasks.discard)
        if not queue.waiting and not queue.in_flight and len(self._queues) > QUEUES_MAX:
            self._queues.pop(queue.kind.key, None)
            if queue.expiry is not None:
                queue.expiry.cancel()

    def _release(self, queue: _Queue) -> None:
        queue.hold = None
        self._advance(queue, held=True)

    async def _run(self, queue: _Queue, batch: _Batch) -> None:
        awaited = [search for search in batch.searches if not search.done()]
        found: list[tuple[_Search, Found]] = []
        try:
            queries = _read(awaited, queue.kind.body.collection)
            awaited = [search for search in awaited if not search.done()]
            if awaited:
                REQUEST_ID.set(awaited[0].http_request)  # the workers are asked for one of them
                results, outcome = await self._ask(queue.kind.body, np.concatenate(queries))
                for search, hits in zip(awaited, results.lists, strict=True):
                    query_results = MergedHits([hits], results.unknown, results.vectors, results.nearest)
                    found.append((search, (query_results, outcome)))
        except asyncio.CancelledError:
            for search in awaited:
                search.cancel()
            raise
        except Exception as error:
            # Every search of the batch raises the error to its own client.
            for search in awaited:
                if not search.done():
                    search.set_exception(error)
        finally:
            queue.in_flight.remove(batch)
            queue.recent = (queue.recent + len(batch.searches) + len(queue.waiting)) / 2
            batch.searches = []  # they refer to the batch, and would stay until the collector runs
            self._advance(queue)
        for search, own_found in found:  # the queue is in order: who is told may search again at once
            if not search.done():
                search.set_result(own_found)


def _read(searches: Sequence[_Search], collection: Collection) -> list[Floats]:
    """The vectors of the searches. Those in JSON are read together. If one is wrong, its search gets the error and has
    no vector here."""
    texts = [search.queries for search in searches if isinstance(search.queries, bytes)]
    try:
        rows = iter(vectors_of(texts, collection) if texts else ())
        return [next(rows)[np.newaxis] if isinstance(search.queries, bytes) else search.queries for search in searches]
    except BadData:
        return [vector for search in searches if (vector := _vector_of(search, collection)) is not None]


def _vector_of(search: _Search, collection: Collection) -> Floats | None:
    if not isinstance(search.queries, bytes):
        return search.queries
    try:
        return vectors_of([search.queries], collection)
    except BadData as error:
        search.set_exception(error)
        return None
