"""The log's sequence numbers and its segments.

Numbers are taken from a range that was reserved on disk before, so no number is ever handed out twice, whatever
crashes. The rest of the range that a crash leaves is a gap. The state is one document with a checksum, replaced
atomically.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

import msgspec

from coordinator.log import checked_json
from shared.control import Control
from shared.errors import ConfigError, Unavailable
from shared.messages.log import Span
from shared.settings import Settings

RESERVE_AHEAD = 1 << 20
"""Numbers reserved at once: at a million records a second one small file a second, a gap of at most this in 2^64."""
LOST_AHEAD = 1 << 32
"""The distance from the highest number that the shards hold to the next number, when the state file is lost or the data
is restored from a backup. Readers may have seen higher numbers of which nothing is stored (reserved before a crash,
taken back, or given after the backup), and never look below them again. A crash leaves a gap of 2^20 at most."""
DIRECTORY, STATE = "sequencer", "state"
"""The place of the state in the data directory, and its name there."""
FORMAT = 1


@dataclass(slots=True)
class Segment:
    """Records from `start_seq` up to the next segment's. `bytes`: of keys and values, in all shards."""

    id: int
    start_seq: int
    start_time_ms: int
    bytes: int = 0


class Revoked(msgspec.Struct):
    """Batches of one group that were given up, and the shards that may still hold parts of them."""

    segment: int
    group: int
    spans: list[Span]
    shards: list[int]


class State(msgspec.Struct):
    """`limit`: every number below it may have been handed out. `next`: after an orderly stop, the next number, more
    precisely than `limit`. `confirmed`: whether all shards have been asked since there was no file, so that numbers are
    above all that they hold. `time_ms`: no record had been appended later than this when the state was written."""

    format: int
    limit: int
    next: int | None
    settled: int
    segments: list[tuple[int, int, int, int]]
    revoked: list[Revoked]
    confirmed: bool = True
    time_ms: int = 0


def decode(content: bytes) -> State:
    """The state in the file. Raises ValueError that says what is wrong."""
    return checked_json.decode(content, State, FORMAT)


def encode(state: State) -> bytes:
    return checked_json.encode(state)


@dataclass
class Sequencer:
    """Hands out numbers, decides when a segment ends, and keeps what the log's readers must know after a crash.

    `reserve` and the readers are for one thread (the event loop); the methods that write the file say so and may run in
    another thread meanwhile.
    """

    control: Control
    settings: Settings
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    next: int = 0
    settled: int = 0
    segments: list[Segment] = field(default_factory=list)
    revoked: list[Revoked] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._limit = 0
        self._lock = Lock()
        self._confirmed = False
        self._time_ms = 0
        self._time_lock = Lock()
        self._segment_since = time.monotonic()
        self.life = time.monotonic_ns()
        """Higher than the life of any coordinator whose messages may still be under way. It may begin again after a
        restart of the machine, because no message survives that."""
        self.is_new = True
        """Whether there was no state, and some shards have not been asked yet what they hold."""

    def open(self) -> None:
        """Read the state and reserve the first range. Raises ConfigError when the file is damaged or not writable."""
        try:
            self.control.prepare()
            if self.control.exists(STATE):
                self._read(self.control.read(STATE))
            self.is_new = not self._confirmed
            self.extend()
        except OSError as error:
            raise ConfigError(f"{self.location} cannot be used: {error.strerror}") from error
        except Unavailable as error:
            raise ConfigError(str(error)) from error

    def _read(self, content: bytes) -> None:
        try:
            state = decode(content)
        except ValueError as error:
            raise ConfigError(
                f"{self.location} is damaged ({error}); restore it, or remove it: numbers then go on above the highest "
                "one that the shards hold"
            ) from error
        self.next = state.limit if state.next is None else state.next
        self.settled, self.revoked = state.settled, state.revoked
        self._confirmed = state.confirmed
        self.segments = [Segment(*fields) for fields in state.segments]
        self.not_before(max([state.time_ms, *(segment.start_time_ms for segment in self.segments)]))

    @property
    def location(self) -> str:
        """Where the state is, for messages."""
        return self.control.location(STATE)

    def confirm(self) -> None:
        """Note that all shards have been asked, and that numbers and segments are above what they hold. Writes the
        file. Raises Unavailable, and then nothing has changed.

        After this, no later start continues below `next`: readers may have seen that number, and shards refuse lower
        ones.
        """
        with self._lock:
            limit = max(self._limit, self.next)
            self._write(limit, None, confirmed=True)
            self._limit, self._confirmed, self.is_new = limit, True, False

    def close(self) -> None:
        """Write what is left of the range, so that an orderly stop leaves no gap. Raises Unavailable."""
        with self._lock:
            self._write(self.next, self.next)

    # Numbers

    def ready_for(self, count: int) -> bool:
        """Whether `reserve(count)` will not touch the disk."""
        return self.next + count <= self._limit and not self.segment_is_due() and bool(self.segments)

    def running_low(self) -> bool:
        return self._limit - self.next < RESERVE_AHEAD // 2

    def prepare(self, count: int) -> None:
        """Make `ready_for(count)` true; writes the file. No number may be taken meanwhile. Raises Unavailable."""
        if self.segment_is_due() or not self.segments:
            self.start_segment()
        if self.next + count > self._limit:
            self.extend(count)

    def extend(self, count: int = 0) -> None:
        """Reserve a further range; writes the file. Raises Unavailable."""
        with self._lock:
            limit = max(self._limit, self.next + count + RESERVE_AHEAD)
            self._write(limit, None)
            self._limit = limit

    def reserve(self, count: int, size_bytes: int = 0) -> int:
        """The first of `count` consecutive numbers for records of that many bytes. Raises Unavailable when more have
        to be reserved on disk and it refuses."""
        if not self.ready_for(count):
            self.prepare(count)
        return self.take(count, size_bytes)

    def take(self, count: int, size_bytes: int = 0) -> int:
        """As `reserve`, after `ready_for(count)` was true: never touches the disk, even if a segment has become due."""
        assert self.segments and self.next + count <= self._limit, "numbers are taken that are not reserved on disk"
        start = self.next
        self.next += count
        self.segments[-1].bytes += size_bytes
        return start

    def skip_to(self, number: int) -> None:
        """Hand out nothing below `number`."""
        self.next = max(self.next, number)

    # Times

    def time_ms(self) -> int:
        """The time of a group that is appended now, in Unix ms. It never decreases: after the clock has been set back,
        it stays at the last time until the clock has passed it."""
        return self.not_before(self.wall_ms())

    @property
    def last_time_ms(self) -> int:
        """No record was appended later than this."""
        return self._time_ms

    def not_before(self, time_ms: int) -> int:
        """Give no time below this one from now on. Returns the lowest time that may still be given."""
        with self._time_lock:  # a segment begins in another thread
            self._time_ms = max(self._time_ms, time_ms)
            return self._time_ms

    # Segments

    @property
    def log_start(self) -> int:
        """Records below it have been dropped."""
        return self.segments[0].start_seq if self.segments else 0

    def segment_is_due(self) -> bool:
        """Whether the last segment is not empty, and large or old enough to end."""
        if not self.segments or self.segments[-1].start_seq == self.next:
            return False
        last = self.segments[-1]
        # A clock that jumps back must not keep a segment open for ever.
        age_ms = max(self.wall_ms() - last.start_time_ms, int((time.monotonic() - self._segment_since) * 1000))
        return last.bytes >= self.settings.log_segment_bytes or age_ms >= self.settings.log_segment_age_ms

    def start_segment(self) -> None:
        """Begin a segment at the next number, unless the last one is empty. Writes the file; raises Unavailable."""

        def change(segments: list[Segment]) -> list[Segment]:
            if segments and segments[-1].start_seq == self.next:
                return segments
            last = segments[-1] if segments else Segment(-1, 0, 0)
            return [*segments, Segment(last.id + 1, self.next, self.time_ms())]

        self._change_segments(change)
        self._segment_since = time.monotonic()

    def drop_segments(self, count: int) -> None:
        """Forget the first `count` segments, never the last one. Writes the file; raises Unavailable."""
        self._change_segments(lambda segments: segments[min(count, len(segments) - 1) :])

    def add_segments(self, held: list[Segment]) -> None:
        """Add segments that the shards hold and that were lost with the state file. Writes the file."""
        self._change_segments(lambda segments: sorted([*held, *segments], key=lambda s: s.id))

    def _change_segments(self, change: Callable[[list[Segment]], list[Segment]]) -> None:
        with self._lock:
            segments = change(self.segments)
            self._write(self._limit, None, segments)
            self.segments = segments  # readers see them only now

    # What a crash must not undo

    def save(self) -> None:
        """Write `revoked` and `settled` as they are now. Raises Unavailable."""
        with self._lock:
            self._write(self._limit, None)

    def _write(
        self,
        limit: int,
        stopped_at: int | None,
        segments: list[Segment] | None = None,
        confirmed: bool | None = None,
    ) -> None:
        """Write the state: the values given, and those in memory for the rest. The callers change memory only after
        this, so that it never runs ahead of the disk."""
        state = State(
            FORMAT,
            limit,
            stopped_at,
            self.settled,
            [(s.id, s.start_seq, s.start_time_ms, s.bytes) for s in (self.segments if segments is None else segments)],
            list(self.revoked),
            self._confirmed if confirmed is None else confirmed,
            self._time_ms,
        )
        try:
            self.control.replace(STATE, encode(state))
        except OSError as error:
            raise Unavailable(f"the log's state {self.location} cannot be written: {error.strerror}") from error
