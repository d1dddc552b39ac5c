"""How many requests of a kind may be at work while more come than leave.

By Little's law, requests at work = requests that end in a second × seconds at work. So if each may take `SLOWDOWN`
times as long as it takes at rest, the number follows from two measurements: how many end in a second, and how long they
take at rest. Fewer leave processors idle; with more, none ends earlier, and each takes longer. The idea is that of
congestion control by delay (L. Brakmo, L. Peterson, "TCP Vegas", 1995; N. Cardwell et al., "BBR", 2016). A bound that
is too low leaves nothing waiting: requests take their time at rest, and the bound grows up to `SLOWDOWN` times in each
look.

Reads and writes have a bound each, since they wait for different things: reads for processors, and writes also for an
fsync that they share. Each path has its own time at rest, so slow requests beside quick ones do not look like a queue.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from itertools import takewhile

SLOWDOWN, SLOWDOWN_MILD = 2.0, 12.0
"""So many times as long as at rest may a request be at work: while half of those that come are refused, or more, and
while hardly any is. Many at work share messages and commits, so more of them end in a second, each later. In a mild
overload that is enough to refuse none; in a hard one only those at work would wait for longer."""
LOOKS = 10
"""The bound follows the better half of so many looks: a short stall, such as of a disk, does not lower it."""
STEP = 0.05
"""By this share the time at rest of a path moves towards a time measured: it becomes the median, whatever the longest
times are."""
PATHS_MAX = 64
"""Paths with a time of their own; the names of labels and vectors are in paths as well."""
PLACE_S = 0.1
"""A request that has been at work for so long no longer takes a place."""
FRESH_S = 0.25
"""Requests that have been at work for longer are slow ones, or wait for what hangs: they must not keep others from
their turn."""


class AtWork:
    """The requests of one kind that are at work and began a short time ago. For the event loop's thread only.

    `least`: the bound is never lower. `rest_s`: the time at rest of a path of which nothing is known.
    """

    def __init__(self, least: int, rest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._clock = clock
        self._fresh: dict[Hashable, tuple[float, str, bool]] = {}  # (when it began, path, alone?), in this order
        self._usual_s = {"": rest_s}  # at rest, by path; "" stands for all others
        self._ended_s = 0.0  # what those that ended since the last look would have taken at rest
        self._looked = clock()
        self._loads: deque[float] = deque(maxlen=LOOKS)  # how many had been at work if each had taken that
        self.limit = least
        """How many should be at work while more come than leave."""

    def __len__(self) -> int:
        return len(self._fresh)

    def begin(self, request: Hashable, path: str, *, is_alone: bool) -> None:
        """It is at work from now on. `is_alone`: what it takes is what it takes at rest."""
        self._fresh.pop(request, None)  # of a request before this one: the order is that of the times
        self._fresh[request] = self._clock(), path, is_alone

    def end(self, request: Hashable) -> None:
        """It has been answered, if it was one of these."""
        found = self._fresh.pop(request, None)
        if found is None:
            return
        began, path, is_alone = found
        usual_s = self._usual_s
        path = path if path in usual_s or (is_alone and len(usual_s) < PATHS_MAX) else ""
        took_s = usual_s.get(path, usual_s[""])
        if is_alone:
            usual_s[path] = took_s * (1 + STEP if self._clock() - began > took_s else 1 - STEP)
        self._ended_s += took_s

    def leave(self, request: Hashable) -> bool:
        """Whether it was one of these, which it no longer is: it is slow, or waits for its client."""
        return self._fresh.pop(request, None) is not None

    def fill(self, places: int) -> bool:
        """Whether they take all of so many places. One that has been at work for long may wait for a worker that hangs:
        it gives its place to another, but only one, so that a stall does not let in all who wait at once."""
        return len(self._fresh) >= places and len(self._fresh) - self._slow() >= places

    def _slow(self) -> int:
        """How many have been at work for long."""
        before = self._clock() - PLACE_S
        return sum(1 for _ in takewhile(lambda began: began[0] <= before, self._fresh.values()))

    def look(self, refused_share: float) -> None:
        """Forget those that are slow, and set the bound anew. To be called at intervals. `refused_share`: of the
        requests that waited for their turn."""
        now = self._clock()
        while self._fresh and next(iter(self._fresh.values()))[0] <= now - FRESH_S:
            del self._fresh[next(iter(self._fresh))]
        if now > self._looked:
            self._loads.append(self._ended_s / (now - self._looked))
            self._ended_s, self._looked = 0.0, now
            best = sorted(self._loads)[-LOOKS // 2 :]
            mildness = max(0.0, 1.0 - 2.0 * refused_share)
            slowdown = SLOWDOWN + (SLOWDOWN_MILD - SLOWDOWN) * mildness
            self.limit = max(self._least, math.ceil(slowdown * sum(best) / len(best)))
