"""When the head of a shard is sealed, and why.

A head is sealed because it is large, because the write-ahead log waits for it, or because a window is over. To keep an
idle cluster small, it is also sealed because it is at rest or because it has old samples. If a rest ends right after
its seal, a block was written for few samples. These two reasons therefore have conditions:

- The samples must be worth a block: their bytes times the seconds that they wait must reach WORTH_BYTE_S. So 2 MB wait
  for half a minute and 100 kB for ten minutes; less waits for the end of its window, as it does without these rules.
- A head is at rest only when it has been quiet for as long as it took to fill, or for BUSY_S_MAX. So a sender that
  sends every few seconds or minutes is not at rest in between. Quiet is relative: a trickle, such as the metrics of the
  cluster itself, does not end the rest of a head that others have filled.
- After each seal for one of these reasons, the next one has to wait longer (`Patience`).
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from worker.patience import Patience
from worker.series.arena import BEFORE, NEVER

GRACE_SHARE = 8
"""A window is sealed once this fraction (1/8) of its length has passed since its end, to wait for slow senders."""
REST_S = 30.0
"""The shortest rest before a seal."""
LATE_S = 120.0
"""Old samples wait at least this long for more of them. A fast backfill fills the head sooner."""
WORTH_BYTE_S = 64 << 20
BUSY_S_MAX = 300.0
"""A head that has been quiet for this long is at rest, however long it took to fill."""
TRICKLE_SHARE, TRICKLE_RATE_SHARE = 16, 8
"""A head is quiet while at most 1/16 of it arrives, at no more than 1/8 of the earlier rate."""
GROWTH = 1 + 1 / 64
"""Growth of a head between two entries of `Pace`."""

Reason = Literal["size", "log", "window", "rest", "late", "retry"]
"""size: the head is over its bound. log: the write-ahead log waits for it. window: a window is over. rest: nearly
nothing arrives. late: it has samples of windows that were sealed earlier. retry: an earlier seal has failed."""
REASONS: tuple[Reason, ...] = ("size", "log", "window", "rest", "late", "retry")


@dataclass(frozen=True, slots=True)
class HeadState:
    """The samples of a shard in memory. `late_bytes` returns the size of the samples before a time in ms."""

    samples: int
    size_bytes: int
    earliest_ms: int
    is_behind: bool
    is_frozen: bool
    late_bytes: Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Due:
    """The samples with t < `before_ms` are due to be sealed."""

    before_ms: int
    reason: Reason


class Pace:
    """When the samples of a head arrived. There is an entry for each growth by a 64th, so there are some hundreds.
    Samples are counted instead of bytes because chunks double in size, so even the bytes of a steady sender grow in
    large steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times_s: list[float] = []
        self._sizes: list[float] = []

    def note(self, size: int) -> None:
        """Note how many samples the head has now. After a part of the head was sealed, the rest counts as if its
        samples had been spread evenly over the arrivals so far."""
        if size and (not self._sizes or size >= self._sizes[-1] * GROWTH):
            self._times_s.append(self._clock())
            self._sizes.append(size)
        elif not size:
            self._times_s, self._sizes = [], []
        elif size < self._sizes[-1]:
            self._sizes = [earlier * size / self._sizes[-1] for earlier in self._sizes]

    def begin(self, size: int) -> None:
        """Begin with a head that already has `size` samples, whose times of arrival are unknown."""
        now_s = self._clock()
        if size:
            self._times_s, self._sizes = [now_s - BUSY_S_MAX, now_s], [size / 2, size]

    def is_at_rest(self, rest_s_min: float) -> bool:
        """Whether the head has been quiet for `rest_s_min`, and for as long as its second half took to arrive."""
        if not self._sizes:
            return False
        now_s, size = self._clock(), self._sizes[-1]
        half_ago_s = now_s - self._times_s[bisect_left(self._sizes, size / 2)]
        rest_s = max(rest_s_min, min(half_ago_s / 2, BUSY_S_MAX))
        if half_ago_s < rest_s:
            return False
        arrived = size - self._sizes[bisect_right(self._times_s, now_s - rest_s) - 1]
        busy_s, arrived_before = half_ago_s - rest_s, size / 2 - arrived
        is_slower = arrived * busy_s * TRICKLE_RATE_SHARE <= arrived_before * rest_s
        return is_slower and arrived * TRICKLE_SHARE <= size


class SealingRules:
    """Decides when to seal the head of one shard. Used by one thread, which calls `due` about every second."""

    def __init__(self, head_bytes_max: int, window_ms: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._head_bytes_max = head_bytes_max
        self._window_ms = window_ms
        self._clock = clock
        self._pace = Pace(clock)
        self._rest = Patience(REST_S, clock)
        self._late = Patience(LATE_S, clock)
        self._late_since_s: float | None = None
        self._sealed_to_ms = BEFORE

    def begin(self, head: HeadState, now_ms: int) -> None:
        """Begin with the head that a start has replayed."""
        before_ms = self.before_ms(now_ms)
        if head.earliest_ms >= before_ms:
            self._sealed_to_ms = before_ms
        self._pace.begin(head.samples)

    def before_ms(self, now_ms: int) -> int:
        """Samples before this time, in Unix ms, are in windows that are due to be sealed."""
        return (now_ms - self._window_ms // GRACE_SHARE) // self._window_ms * self._window_ms

    def due(self, head: HeadState, now_ms: int) -> Due | None:
        """What is to be sealed now; None if nothing is."""
        before_ms = self.before_ms(now_ms)
        self._sealed_to_ms = min(self._sealed_to_ms, before_ms)  # the clock may have been set back
        self._pace.note(head.samples)
        if head.size_bytes > self._head_bytes_max:
            return Due(NEVER, "size")
        if head.is_behind:
            return Due(NEVER, "log")
        if head.is_frozen:
            return Due(before_ms, "retry")
        if head.earliest_ms < before_ms and before_ms > self._sealed_to_ms:
            return Due(before_ms, "window")
        if self._is_at_rest(head.size_bytes):
            return Due(NEVER, "rest")
        if self._has_waited_late(head, before_ms):
            return Due(NEVER, "late")  # all of it, because the journal is cut before the first sample that stays
        return None

    def sealed(self, due: Due) -> None:
        """Note that what was due has been sealed."""
        if due.before_ms != NEVER:
            self._sealed_to_ms = due.before_ms
        if due.reason == "rest":
            self._rest.done()
        elif due.reason == "late":
            self._late.done()
        self._late_since_s = None

    def _is_at_rest(self, size: int) -> bool:
        return size > 0 and self._pace.is_at_rest(max(self._rest.wait_s, WORTH_BYTE_S / size))

    def _has_waited_late(self, head: HeadState, before_ms: int) -> bool:
        """Whether the samples before `before_ms` have waited long enough. Their windows were sealed earlier, so they
        would otherwise wait for the end of the current window."""
        late_bytes = head.late_bytes(before_ms) if head.earliest_ms < before_ms else 0
        if not late_bytes:
            self._late_since_s = None
            return False
        if self._late_since_s is None:
            self._late_since_s = self._clock()
        return self._clock() - self._late_since_s >= max(self._late.wait_s, WORTH_BYTE_S / late_bytes)
