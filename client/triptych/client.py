"""The client whose methods wait for their answers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar

import httpx

from triptych import consumer_groups, log, metrics, vectors
from triptych.binding import iterated, run, sent
from triptych.calls import Call, Reading, Steps, last_call, resumed
from triptych.errors import TriptychError
from triptych.forks import renew_in_forks
from triptych.log import Appended
from triptych.producer import Numbers
from triptych.records import Appendable
from triptych.retrying import Attempts
from triptych.transport import Certificate, Connection, Transport

T = TypeVar("T")
TIMEOUT_S = 60.0
CLOSING_S = 5.0
"""The time limit of a request that only tells the server that its answer is no longer read. It is sent once."""
CLOSED = "the client was closed before this was read to its end"


class Client:
    """A client of Triptych at `url` (by default TRIPTYCH_URL, or http://127.0.0.1:9090); threads may share one.

    `token` (by default TRIPTYCH_TOKEN), or `user` and `password`, say who is asking. `ca`: file with the certificates
    that the server's is verified with; `certificate`: file of this client's own, or (certificate, key). `timeout`:
    seconds that a request may take, with all its repetitions. `arrow`: queries and searches are answered as Arrow
    streams, for which both sides need pyarrow. `http`: an httpx.Client to send with, which has all
    of this already.

    Raises TriptychError: which one, and what is repeated, is told by `triptych.errors`.
    """

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
        http: httpx.Client | None = None,
    ) -> None:
        self.timeout = timeout
        self.arrow = arrow
        self._transport = Transport(Connection(url, token, user, password, ca, certificate, headers), http)
        self._readings: dict[Reading[Any], int] = {}
        """Readings that have not ended → the process that began them."""
        self.metrics = Metrics(self)
        self.log = Log(self)
        self.vectors = Vectors(self)

    def send(self, call: Call[T]) -> T:
        """Send one request, and repeat it where that may help and does no harm."""
        call = call.asking_for_arrow() if self.arrow else call
        attempts = Attempts(call, self.timeout)
        while True:
            try:
                return call.read(self._transport.send(call, attempts.left_s()))
            except TriptychError as error:
                time.sleep(attempts.pause_s(error))

    def run(self, steps: Steps[T]) -> T:
        """Send the requests that the steps yield."""
        try:
            call = next(steps)
            while True:
                call = resumed(steps, self._outcome(call))
        except StopIteration as end:
            result: T = end.value
            return result

    def iterate(self, reading: Reading[T]) -> Iterator[T]:
        """Send the requests that the reading yields when the caller's loop needs them."""
        self._readings[reading] = os.getpid()
        try:
            step = next(reading)
            while True:
                if isinstance(step, Call):
                    step = resumed(reading, self._outcome(step))
                else:
                    yield from step
                    step = next(reading)
        except StopIteration:
            if reading not in self._readings:
                raise RuntimeError(CLOSED) from None
        finally:
            self._end(reading)

    def _outcome(self, call: Call[Any]) -> Any:
        """The result of the call, or the error."""
        try:
            return self.send(call)
        except TriptychError as error:
            return error

    def _end(self, reading: Reading[Any]) -> None:
        began_in = self._readings.pop(reading, None)
        call = last_call(reading)
        if call is not None and began_in == os.getpid():  # otherwise, the process that was forked still reads
            with suppress(TriptychError):
                self._transport.send(call, CLOSING_S)

    def close(self) -> None:
        """Also ends the loops that are still open, so that a consumer leaves its group, unless it joined before this
        process was forked."""
        try:
            for reading in list(self._readings):
                self._end(reading)
        finally:
            self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Area:
    def __init__(self, client: Client) -> None:
        self.client = client


class Metrics(Area):
    """PromQL queries and samples."""

    query = sent(metrics.query)
    query_range = sent(metrics.query_range)
    series = sent(metrics.series)
    labels = sent(metrics.labels)
    label_values = sent(metrics.label_values)
    metadata = sent(metrics.metadata)
    write = run(metrics.write)
    delete_series = sent(metrics.delete_series)


class Log(Area):
    """Records by key, in order."""

    append = sent(log.append)
    scan = iterated(log.scan)
    pages = iterated(log.pages)
    read = run(log.read)
    follow = iterated(log.follow)
    keys = iterated(log.keys)
    count = sent(log.count)
    offset = sent(log.offset)
    frontier = sent(log.frontier)
    delete_key = sent(log.delete_key)
    cursor = sent(log.cursor)
    set_cursor = sent(log.set_cursor)
    delete_cursor = sent(log.delete_cursor)
    cursors = iterated(log.cursors)
    join = sent(consumer_groups.join)
    poll = sent(consumer_groups.poll)
    commit = sent(consumer_groups.commit)
    leave = sent(consumer_groups.leave)
    consume = iterated(consumer_groups.consume)
    describe_group = sent(consumer_groups.describe)
    groups = iterated(consumer_groups.groups)
    delete_group = sent(consumer_groups.delete_group)

    def producer(self, name: str = "", *, sequence: int = 0) -> Producer:
        """Appends that are made exactly once, however often they are sent. `name`: by default a unique one; `sequence`:
        the number of the first batch, for a producer that continues after a restart."""
        return Producer(self.client, Numbers(name, sequence))


class Producer:
    """Appends batches one after the other; threads may share one."""

    def __init__(self, client: Client, numbers: Numbers) -> None:
        self.numbers = numbers
        self._client = client
        self._renew()
        renew_in_forks(self, Producer._renew)

    def _renew(self) -> None:
        # The lock of a forked process would stay locked for ever if another thread was appending meanwhile.
        self._one_at_a_time = threading.Lock()

    def append(self, records: Iterable[Appendable], *, await_durable: bool = False) -> Appended:
        """As `Log.append`. If it fails, repeat the same call: it appends the records once in all."""
        with self._one_at_a_time:
            return self._client.run(self.numbers.appending(records, await_durable))


class Vectors(Area):
    """Embeddings with attributes, and their nearest neighbours."""

    create_collection = sent(vectors.create_collection)
    collection = sent(vectors.collection)
    collections = sent(vectors.collections)
    delete_collection = sent(vectors.delete_collection)
    stats = sent(vectors.stats)
    upsert = run(vectors.upsert)
    search = sent(vectors.search)
    search_many = run(vectors.search_many)
    get = run(vectors.get)
    scroll = iterated(vectors.scroll)
    count = sent(vectors.count)
    facets = sent(vectors.facets)
    delete = run(vectors.delete)
    update = run(vectors.update)
