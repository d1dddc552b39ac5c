"""The client whose methods are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from triptych import consumer_groups, log, metrics, vectors
from triptych.binding import async_iterated, async_run, async_sent
from triptych.calls import Call, Reading, Steps, last_call, resumed
from triptych.client import CLOSED, CLOSING_S, TIMEOUT_S
from triptych.errors import TriptychError
from triptych.log import Appended
from triptych.producer import Numbers
from triptych.records import Appendable
from triptych.retrying import Attempts
from triptych.transport import AsyncTransport, Certificate, Connection

T = TypeVar("T")


class AsyncClient:
    """As Client, with methods to be awaited, for one event loop. `http`: an httpx.AsyncClient to send with."""

    def __init__(
        self,
        url: str = "",
        *,
        token: str = "",
        user: str = "",
        password: str = "",
        ca: str = "",
        certificate: Certificate | None = None,
        headers: Mapping[str, str] = {},
        timeout: float = TIMEOUT_S,
        arrow: bool = False,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self.timeout = timeout
        self.arrow = arrow
        self._transport = AsyncTransport(Connection(url, token, user, password, ca, certificate, headers), http)
        self._readings: set[Reading[Any]] = set()
        self._farewells: set[asyncio.Task[None]] = set()
        self.metrics = AsyncMetrics(self)
        self.log = AsyncLog(self)
        self.vectors = AsyncVectors(self)

    async def send(self, call: Call[T]) -> T:
        """Send one request, and repeat it where that may help and does no harm."""
        call = call.asking_for_arrow() if self.arrow else call
        attempts = Attempts(call, self.timeout)
        while True:
            try:
                return call.read(await self._transport.send(call, attempts.left_s()))
            except TriptychError as error:
                await asyncio.sleep(attempts.pause_s(error))

    async def run(self, steps: Steps[T]) -> T:
        """Send the requests that the steps yield."""
        try:
            call = next(steps)
            while True:
                call = resumed(steps, await self._outcome(call))
        except StopIteration as end:
            result: T = end.value
            return result

    async def iterate(self, reading: Reading[T]) -> AsyncIterator[T]:
        """Send the requests that the reading yields when the caller's loop needs them."""
        self._readings.add(reading)
        try:
            step = next(reading)
            while True:
                if isinstance(step, Call):
                    step = resumed(reading, await self._outcome(step))
                else:
                    for item in step:
                        yield item
                    step = next(reading)
        except StopIteration:
            if reading not in self._readings:
                raise RuntimeError(CLOSED) from None
        finally:
            await asyncio.gather(*self._ended(reading))

    async def _outcome(self, call: Call[Any]) -> Any:
        """The result of the call, or the error."""
        try:
            return await self.send(call)
        except TriptychError as error:
            return error

    def _ended(self, reading: Reading[Any]) -> list[asyncio.Task[None]]:
        """The task that tells the server that the reading has ended, if the server needs to know."""
        self._readings.discard(reading)
        call = last_call(reading)
        if call is None:
            return []
        farewell = asyncio.ensure_future(self._tell(call))
        self._farewells.add(farewell)
        farewell.add_done_callback(self._farewells.discard)
        return [farewell]

    async def _tell(self, call: Call[Any]) -> None:
        with suppress(TriptychError):
            await self._transport.send(call, CLOSING_S)

    async def close(self) -> None:
        """Also ends the loops that are still open, so that a consumer leaves its group. asyncio itself ends a loop that
        was left with `break` only some time later."""
        for reading in list(self._readings):
            self._ended(reading)
        try:
            await asyncio.gather(*self._farewells)
        finally:
            await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class AsyncArea:
    def __init__(self, client: AsyncClient) -> None:
        self.client = client


class AsyncMetrics(AsyncArea):
    """PromQL queries and samples."""

    query = async_sent(metrics.query)
    query_range = async_sent(metrics.query_range)
    series = async_sent(metrics.series)
    labels = async_sent(metrics.labels)
    label_values = async_sent(metrics.label_values)
    metadata = async_sent(metrics.metadata)
    write = async_run(metrics.write)
    delete_series = async_sent(metrics.delete_series)


class AsyncLog(AsyncArea):
    """Records by key, in order."""

    append = async_sent(log.append)
    scan = async_iterated(log.scan)
    pages = async_iterated(log.pages)
    read = async_run(log.read)
    follow = async_iterated(log.follow)
    keys = async_iterated(log.keys)
    count = async_sent(log.count)
    offset = async_sent(log.offset)
    frontier = async_sent(log.frontier)
    delete_key = async_sent(log.delete_key)
    cursor = async_sent(log.cursor)
    set_cursor = async_sent(log.set_cursor)
    delete_cursor = async_sent(log.delete_cursor)
    cursors = async_iterated(log.cursors)
    join = async_sent(consumer_groups.join)
    poll = async_sent(consumer_groups.poll)
    commit = async_sent(consumer_groups.commit)
    leave = async_sent(consumer_groups.leave)
    consume = async_iterated(consumer_groups.consume)
    describe_group = async_sent(consumer_groups.describe)
    groups = async_iterated(consumer_groups.groups)
    delete_group = async_sent(consumer_groups.delete_group)

    def producer(self, name: str = "", *, sequence: int = 0) -> AsyncProducer:
        """Appends that are made exactly once, however often they are sent. `name`: by default a unique one; `sequence`:
        the number of the first batch, for a producer that continues after a restart."""
        return AsyncProducer(self.client, Numbers(name, sequence))


class AsyncProducer:
    """Appends batches one after the other; tasks may share one."""

    def __init__(self, client: AsyncClient, numbers: Numbers) -> None:
        self.numbers = numbers
        self._client = client
        self._one_at_a_time = asyncio.Lock()

    async def append(self, records: Iterable[Appendable], *, await_durable: bool = False) -> Appended:
        """As `AsyncLog.append`. If it fails, repeat the same call: it appends the records once in all."""
        async with self._one_at_a_time:
            return await self._client.run(self.numbers.appending(records, await_durable))


class AsyncVectors(AsyncArea):
    """Embeddings with attributes, and their nearest neighbours."""

    create_collection = async_sent(vectors.create_collection)
    collection = async_sent(vectors.collection)
    collections = async_sent(vectors.collections)
    delete_collection = async_sent(vectors.delete_collection)
    stats = async_sent(vectors.stats)
    upsert = async_run(vectors.upsert)
    search = async_sent(vectors.search)
    search_many = async_run(vectors.search_many)
    get = async_run(vectors.get)
    scroll = async_iterated(vectors.scroll)
    count = async_sent(vectors.count)
    facets = async_sent(vectors.facets)
    delete = async_run(vectors.delete)
    update = async_run(vectors.update)
