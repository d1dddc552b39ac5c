"""When the head of a shard is sealed, and why.

A head is sealed because it is large, because the write-ahead log waits for it, or because a window is over; and, so
that an idle cluster is small, because it is at rest or because old samples are in it. A seal in a rest that ends at
once has written a block for few samples, so it needs a reason:

- What is held must be worth a block: its bytes times the seconds that it waits must reach WORTH_BYTE_S. So 2 MB wait
  for half a minute, 100 kB for ten minutes, and less waits for the end of its window, as it does without these rules.
- A head is at rest only when it has been quiet for as long as it took to fill before, or for BUSY_S_MAX. A sender that
  comes every few seconds or minutes is therefore not at rest in between. Quiet is relative: a trickle, such as the
  metrics of the cluster itself, does not end the rest of a head that others have filled.
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
"""The shortest wait of old samples for more of them. Those of a fast backfill fill the head before."""
WORTH_BYTE_S = 64 << 20
BUSY_S_MAX = 300.0
"""A head that has been quiet for so long is at rest, however long it took to fill before."""
TRICKLE_SHARE, TRICKLE_RATE_SHARE = 16, 8
"""A head is quiet while no more than 1/16 of it arrives, and at no more than 1/8 of the rate from before."""
GROWTH = 1 + 1 / 64
"""Growth of a head between two entries of `Pace`."""

Reason = Literal["size", "log", "window", "rest", "late", "retry"]
"""size: the head is over its bound. log: the write-ahead log waits for it. window: a window is over. rest: nearly
nothing arrives. late: samples of windows that were sealed before wait in it. retry: an earlier seal has failed."""
REASONS: tuple[Reason, ...] = ("size", "log", "window", "rest", "late", "retry")


@dataclass(frozen=True, slots=True)
class HeadState:
    """What is in memory of a shard. `late_bytes` tells how many bytes of samples lie before a time in ms."""

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
    """When the samples of a head arrived. It has an entry for each growth by a 64th, so some hundreds. Bytes would not
    do: chunks double, so that those of a steady sender grow in large steps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times_s: list[float] = []
        self._sizes: list[float] = []

    def note(self, size: int) -> None:
        """Note how many samples the head has now. What is left of a head of which a part was sealed counts as if it
        had arrived as evenly as all of it."""
        if size and (not self._sizes or size >= self._sizes[-1] * GROWTH):
            self._times_s.append(self._clock())
            self._sizes.append(size)
        elif not size:
            self._times_s, self._sizes = [], []
        elif size < self._sizes[-1]:
            self._sizes = [before * size / self._sizes[-1] for before in self._sizes]

    def begin(self, size: int) -> None:
        """Begin with a head that has so many samples already, which arrived one does not know when."""
        now_s = self._clock()
        if size:
            self._times_s, self._sizes = [now_s - BUSY_S_MAX, now_s], [size / 2, size]

    def is_at_rest(self, rest_s_min: float) -> bool:
        """Whether the head has been quiet for `rest_s_min`, and for as long as its larger half took to arrive."""
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
    """Decides for one shard. For one thread, which calls `due` about every second."""

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
        """Begin with what a start has replayed."""
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
            return Due(NEVER, "late")  # whole, since the journal is cut in front of the first sample that stays
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
        """Whether the samples before `before_ms` have waited long enough. Their windows were sealed before, so that
        they would else wait for the end of the current window."""
        late_bytes = head.late_bytes(before_ms) if head.earliest_ms < before_ms else 0
        if not late_bytes:
            self._late_since_s = None
            return False
        if self._late_since_s is None:
            self._late_since_s = self._clock()
        return self._clock() - self._late_since_s >= max(self._late.wait_s, WORTH_BYTE_S / late_bytes)
