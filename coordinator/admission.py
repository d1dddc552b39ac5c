"""Which requests are let in: bounds on requests in flight and on the bytes of their bodies, in all and for each client.

A request is in flight while the service works on it. While it waits for its client (for the rest of its body, for
records to come, or until the client takes more of the answer) it is *parked* and does not count: a client that does
nothing must not keep the others out. Parked requests are bounded by other means: connections, bytes, followers, and a
time within which the client must go on (coordinator/connections.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coordinator.clients import Client, share_name, share_of
from coordinator.limiter import AtWork
from coordinator.request_kinds import WRITE_PATHS, is_read, is_state
from shared.config import Settings
from shared.errors import Overloaded

RESERVED_SHARE = 8
"""One in so many places of requests in flight and bytes of bodies is kept: the places for requests that are answered
at once or only write, the bytes for small bodies."""
RESERVED_WRITES = ("/api/v1/write", "/api/v1/log/append", "/v1/", "/api/v1/otlp/")
"""Some places in flight are kept for requests to paths that begin so, and for those that tell a state."""
SMALL_BODY_BYTES = 64 << 10
"""A body up to this size may use the bytes that are kept."""

READS_LEAST_A_WORKER, WRITES_LEAST_A_WORKER = 2, 5
"""So many may always be at work: of reads enough to keep all processes busy, and of writes enough to share messages and
an fsync, which take about as long for one write as for many."""
ALONE_MAX = 2
"""A request that begins beside fewer others shows how long one of its path takes at rest."""
READ_REST_S, WRITE_REST_S = 0.004, 0.008
"""What a small request takes at rest, until that is measured."""


def may_use_reserve(path: str) -> bool:
    """Whether a request to this path may have one of the places that are kept."""
    return is_state(path) or path.startswith(RESERVED_WRITES)


class Holder:
    """What one connection has: the request that it is in the middle of, if any, and the bytes held for it."""

    __slots__ = ("address", "body_bytes", "client", "in_flight", "is_announced", "may_use_reserve", "parked")

    def __init__(self, client: Client) -> None:
        self.client = client
        self.address = client.name
        """Name of the client that an address is, whoever the requests come from."""
        self.in_flight = False
        self.is_announced = False
        self.may_use_reserve = False
        self.parked = 0
        """How many things at once its request waits for."""
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
        """Those that have not been at work for long, and have waited neither for their client nor for a heavy place."""
        self.heavy_requests: Callable[[], int] = lambda: 0
        """How many of the requests in flight are heavy queries, most of which wait for others to end."""
        self.freed: Callable[[], None] = lambda: None
        """Called when a request that is still under way has given up its place."""
        self.make_room: Callable[[int], None] = lambda bytes_wanted: None
        """Ends slow bodies that are arriving, until so many bytes are free (coordinator/connections.py)."""

    # Requests in flight

    def at_work(self) -> int:
        """Requests that are in flight or about to be, without heavy queries."""
        return self.requests + self.announced - self.heavy_requests()

    def announce(self, holder: Holder, path: str) -> None:
        """A request has arrived that will be in flight as soon as the event loop comes to it."""
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
        """The event loop has come to the request, or its connection is gone."""
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
        """See which requests are slow, and how many should be at work. To be called at intervals. `refused_share`: of
        those that waited for their turn."""
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
            kept = (
                f", of which {self.requests_max - self._ordinary_max} are kept for requests that write or tell a state"
            )
            raise Overloaded(
                f"{self.requests} requests are in flight, the limit is {self.requests_max} "
                f"(TRIPTYCH_REQUESTS_IN_FLIGHT_MAX){'' if holder.may_use_reserve else kept}; try again later"
            ).because("requests_in_flight")
        limit = self._client_requests_max if client.share is None else share_of(self.requests_max, client.share)
        if client.requests >= limit:
            raise Overloaded(
                f"{client.name} has {client.requests} requests in flight, the limit for one client is "
                f"{limit} ({share_name(client)} of TRIPTYCH_REQUESTS_IN_FLIGHT_MAX); "
                "try again later"
            ).because("client_share")

    def _share(self, limit: int, client: Client) -> int:
        """What this client may have of the limit."""
        return share_of(limit, self._client_share if client.share is None else client.share)

    def leave(self, holder: Holder) -> None:
        """The request has been answered or has failed; the bytes held for it are given back."""
        holder.in_flight = False
        if not holder.parked:
            self.requests -= 1
            holder.client.requests -= 1
        if holder.body_bytes:
            self.release(holder)

    def park(self, holder: Holder) -> None:
        """The request waits for its client from now on, and is not in flight."""
        self.is_slow(holder)
        if holder.in_flight and not holder.parked:
            self.requests -= 1
            holder.client.requests -= 1
        holder.parked += 1

    def resume(self, holder: Holder) -> None:
        """What `park` said is over."""
        holder.parked -= 1
        if holder.in_flight and not holder.parked:
            self.requests += 1
            holder.client.requests += 1

    @contextmanager
    def arriving(self, holder: Holder) -> Iterator[None]:
        """The request waits for the rest of its body, for as long as the context lasts. Raises Overloaded when there is
        no place for the request after that."""
        self.park(holder)
        try:
            yield
            if holder.parked == 1:
                self._require_place(holder)
        finally:
            self.resume(holder)

    @contextmanager
    def following(self, holder: Holder) -> Iterator[None]:
        """The request waits for records to come, for as long as the context lasts. Raises Overloaded when its client
        follows too often already."""
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
        """Count `more` bytes of the request's body, arrived or decompressed, until the request ends.

        Raises Overloaded when there is no room for them beside those of other requests. A body that is the only one is
        always let in: other settings bound it.
        """
        held = holder.body_bytes + more
        if held > SMALL_BODY_BYTES:
            self._require_bytes(holder, more)
        elif self.body_bytes + more > self.bytes_max:
            self.make_room(more)
            if self.body_bytes + more > self.bytes_max:
                raise self._no_room(self.body_bytes, self.bytes_max, "TRIPTYCH_BODIES_BYTES_MAX", held)
        holder.body_bytes = held
        holder.client.body_bytes += more
        self.body_bytes += more

    def _require_bytes(self, holder: Holder, more: int) -> None:
        """Raises Overloaded when `more` bytes of a large body find no room."""
        held, client = holder.body_bytes, holder.client
        if self.body_bytes > held and self.body_bytes + more > self._large_bytes_max:
            raise self._no_room(self.body_bytes, self._large_bytes_max, "TRIPTYCH_BODIES_BYTES_MAX", held + more)
        limit = self._share(self.bytes_max, client)
        if client.body_bytes > held and client.body_bytes + more > limit:
            raise self._no_room(
                client.body_bytes,
                limit,
                f"for {client.name}: {share_name(client)} of TRIPTYCH_BODIES_BYTES_MAX",
                held + more,
            )

    def _no_room(self, held: int, limit: int, setting: str, size: int) -> Overloaded:
        return Overloaded(
            f"bodies of {held} bytes are held, the limit is {limit} ({setting}), and this one has {size} or more; "
            f"try again later, or with a body of at most {SMALL_BODY_BYTES} bytes"
        ).because("bodies_bytes")

    def release(self, holder: Holder) -> int:
        """Give back what is held for the request; returns how many bytes that was."""
        held, holder.body_bytes = holder.body_bytes, 0
        holder.client.body_bytes -= held
        self.body_bytes -= held
        return held
