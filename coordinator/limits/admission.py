"""Admission control: limits on the requests in flight and on the bytes of their bodies, in total and for each client.

A request is in flight while the service works on it. While it waits for its client, it is *parked* and does not count
as in flight, so that an idle client does not keep others out. It may wait for the rest of its body, for new records, or
for the client to read more of the response. Parked requests have other limits: on connections, bytes and followers, and
a time limit for the client to continue (coordinator/limits/connections.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.limits.clients import Client, share_name, share_of
from coordinator.limits.limiter import AtWork
from coordinator.limits.request_kinds import WRITE_PATHS, is_read, is_state
from shared.errors import Overloaded
from shared.settings import Settings

RESERVED_SHARE = 8
"""The reserve is 1/RESERVED_SHARE of the places of requests in flight and of the bytes of bodies. Its places are for
requests that are answered at once or only write, its bytes for small bodies."""
RESERVED_WRITES = ("/api/v1/write", "/api/v1/log/append", "/v1/", "/api/v1/otlp/")
"""Requests to paths with these prefixes may use the reserved places, and so may requests that report a state."""
SMALL_BODY_BYTES = 64 << 10
"""A body of at most this size may use the reserved bytes."""

READS_LEAST_A_WORKER, WRITES_LEAST_A_WORKER = 2, 5
"""This many requests may always be at work for each worker: enough reads to keep all processes busy, and enough writes
to share messages and an fsync, which take about as long for one write as for many."""
ALONE_MAX = 2
"""A request that begins with fewer others at work is used to measure how long requests to its path take at rest."""
READ_REST_S, WRITE_REST_S = 0.004, 0.008
"""The assumed duration of a small request at rest, until it has been measured."""


def may_use_reserve(path: str) -> bool:
    """Whether a request to this path may use one of the reserved places."""
    return is_state(path) or path.startswith(RESERVED_WRITES)


class Holder:
    """What one connection holds: its current request, if any, and the bytes held for it."""

    __slots__ = ("address", "body_bytes", "client", "in_flight", "is_announced", "may_use_reserve", "parked")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.address = client.name
        """The client name of the connection's address. It stays the same when a request is authenticated as another
        client."""
        self.in_flight = False
        self.is_announced = False
        self.may_use_reserve = False
        self.parked = 0
        """The number of things that its request waits for at the moment."""
        self.body_bytes = 0


class Admission:
    """For the event loop's thread only."""

    def __init__(self, settings: Settings) -> None:
        self.requests_max = settings.requests_in_flight_max
        self.bytes_max = settings.bodies_bytes_max
        self._client_share = settings.client_share
        self._followers_max = settings.log_followers_max
        self._ordinary_max = max(1, self.requests_max - self.requests_max // RESERVED_SHARE)
        self._client_requests_max = share_of(self.requests_max, self._client_share)
        self._large_bytes_max = self.bytes_max - self.bytes_max // RESERVED_SHARE
        self.requests = 0
        self.announced = 0
        self.body_bytes = 0
        workers = settings.worker_count()
        self.reads = AtWork(READS_LEAST_A_WORKER * workers, READ_REST_S)
        self.writes = AtWork(WRITES_LEAST_A_WORKER * workers, WRITE_REST_S)
        """Requests that began a short time ago, and have waited neither for their client nor for a heavy place."""
        self.heavy_requests: Callable[[], int] = lambda: 0
        """Returns how many of the requests in flight are heavy queries, most of which wait for others to end."""
        self.freed: Callable[[], None] = lambda: None
        """Called when a request that is not finished gives up its place."""
        self.make_room: Callable[[int], None] = lambda bytes_wanted: None
        """Ends slow bodies that are arriving until this many bytes are free (coordinator/limits/connections.py)."""

    # Requests in flight

    def at_work(self) -> int:
        """The number of requests that are in flight or about to be, without heavy queries."""
        return self.requests + self.announced - self.heavy_requests()

    def announce(self, holder: Holder, path: str) -> None:
        """A request has arrived. It will be in flight as soon as the event loop starts to handle it."""
        if not holder.is_announced:
            holder.is_announced = True
            self.announced += 1
        self.take_up(holder, path)

    def take_up(self, holder: Holder, path: str) -> None:
        """A request to this path is at work from now on."""
        kind = self.writes if path in WRITE_PATHS else self.reads if is_read(path) else None
        if kind is not None:
            kind.begin(holder, path, is_alone=len(self.reads) + len(self.writes) < ALONE_MAX)

    def begun(self, holder: Holder) -> None:
        """The event loop has started to handle the request, or its connection is gone."""
        if holder.is_announced:
            holder.is_announced = False
            self.announced -= 1

    def over(self, holder: Holder) -> None:
        """The request has been answered, or its connection is gone, whether or not it has been in flight."""
        self.begun(holder)
        self.reads.end(holder)
        self.writes.end(holder)

    def is_slow(self, holder: Holder) -> None:
        """The request gives up its place among those that began a short time ago."""
        if self.reads.leave(holder) or self.writes.leave(holder):
            self.freed()

    def look(self, refused_share: float) -> None:
        """Find out which requests are slow, and adjust how many should be at work. Call this at intervals.
        `refused_share`: the share of waiting requests that were refused."""
        self.reads.look(refused_share)
        self.writes.look(refused_share)

    def enter(self, holder: Holder, *, may_use_reserve: bool) -> None:
        """A request is in flight from now on. Raises Overloaded when there is no place for it."""
        holder.may_use_reserve = may_use_reserve
        self._require_place(holder)
        holder.in_flight = True
        if not holder.parked:
            self.requests += 1
            holder.client.requests += 1

    def _require_place(self, holder: Holder) -> None:
        client = holder.client
        if self.requests >= (self.requests_max if holder.may_use_reserve else self._ordinary_max):
            reserve = (
                f", of which {self.requests_max - self._ordinary_max} are kept for requests that write or tell a state"
            )
            raise Overloaded(
                f"{self.requests} requests are in flight, the limit is {self.requests_max} "
                f"(TRIPTYCH_REQUESTS_IN_FLIGHT_MAX){'' if holder.may_use_reserve else reserve}; try again later"
            ).because("requests_in_flight")
        limit = self._client_requests_max if client.share is None else share_of(self.requests_max, client.share)
        if client.requests >= limit:
            raise Overloaded(
                f"{client.name} has {client.requests} requests in flight, the limit for one client is "
                f"{limit} ({share_name(client)} of TRIPTYCH_REQUESTS_IN_FLIGHT_MAX); "
                "try again later"
            ).because("client_share")

    def _share(self, limit: int, client: Client) -> int:
        """The part of the limit that this client may use."""
        return share_of(limit, self._client_share if client.share is None else client.share)

    def leave(self, holder: Holder) -> None:
        """The request has been answered or has failed. Releases the bytes held for it."""
        holder.in_flight = False
        if not holder.parked:
            self.requests -= 1
            holder.client.requests -= 1
        if holder.body_bytes:
            self.release(holder)

    def park(self, holder: Holder) -> None:
        """From now on the request waits for its client, and does not count as in flight."""
        self.is_slow(holder)
        if holder.in_flight and not holder.parked:
            self.requests -= 1
            holder.client.requests -= 1
        holder.parked += 1

    def resume(self, holder: Holder) -> None:
        """Undo one call of `park`."""
        holder.parked -= 1
        if holder.in_flight and not holder.parked:
            self.requests += 1
            holder.client.requests += 1

    @contextmanager
    def arriving(self, holder: Holder) -> Iterator[None]:
        """While the context lasts, the request waits for the rest of its body. Raises Overloaded at the end if there is
        no place for the request."""
        self.park(holder)
        try:
            yield
            if holder.parked == 1:
                self._require_place(holder)
        finally:
            self.resume(holder)

    @contextmanager
    def following(self, holder: Holder) -> Iterator[None]:
        """While the context lasts, the request waits for new records. Raises Overloaded if its client has too many such
        requests already."""
        client = holder.client
        limit = self._share(self._followers_max, client)
        if client.followers >= limit:
            raise Overloaded(
                f"{client.followers} reads of {client.name} follow the log, the limit for one client is "
                f"{limit} ({share_name(client)} of TRIPTYCH_LOG_FOLLOWERS_MAX); try again later"
            ).because("client_share")
        client.followers += 1
        self.park(holder)
        try:
            yield
        finally:
            self.resume(holder)
            client.followers -= 1

    # Bytes

    def hold(self, holder: Holder, more: int) -> None:
        """Count `more` bytes of the request's body, received or decompressed, until the request ends.

        Raises Overloaded if there is no room for them in addition to the bytes of other requests. A body is always
        admitted if it is the only one; other settings limit its size.
        """
        request_bytes = holder.body_bytes + more
        if request_bytes > SMALL_BODY_BYTES:
            self._require_bytes(holder, more)
        elif self.body_bytes + more > self.bytes_max:
            self.make_room(more)
            if self.body_bytes + more > self.bytes_max:
                raise self._no_room(self.body_bytes, self.bytes_max, "TRIPTYCH_BODIES_BYTES_MAX", request_bytes)
        holder.body_bytes = request_bytes
        holder.client.body_bytes += more
        self.body_bytes += more

    def _require_bytes(self, holder: Holder, more: int) -> None:
        """Raises Overloaded if there is no room for `more` bytes of a large body."""
        request_bytes, client = holder.body_bytes, holder.client
        if self.body_bytes > request_bytes and self.body_bytes + more > self._large_bytes_max:
            raise self._no_room(
                self.body_bytes, self._large_bytes_max, "TRIPTYCH_BODIES_BYTES_MAX", request_bytes + more
            )
        limit = self._share(self.bytes_max, client)
        if client.body_bytes > request_bytes and client.body_bytes + more > limit:
            raise self._no_room(
                client.body_bytes,
                limit,
                f"for {client.name}: {share_name(client)} of TRIPTYCH_BODIES_BYTES_MAX",
                request_bytes + more,
            )

    def _no_room(self, held_bytes: int, limit: int, setting: str, body_bytes: int) -> Overloaded:
        return Overloaded(
            f"bodies of {held_bytes} bytes are held, the limit is {limit} ({setting}), "
            f"and this one has {body_bytes} or more; "
            f"try again later, or with a body of at most {SMALL_BODY_BYTES} bytes"
        ).because("bodies_bytes")

    def release(self, holder: Holder) -> int:
        """Release the bytes held for the request. Returns how many there were."""
        released, holder.body_bytes = holder.body_bytes, 0
        holder.client.body_bytes -= released
        self.body_bytes -= released
        return released
