"""The concurrency limit: how many requests of a kind may be at work while more arrive than finish.

By Little's law, requests at work = requests that finish in a second × seconds at work. If each request may take
`SLOWDOWN` times as long as at rest, the limit follows from two measurements: how many finish in a second, and how long
they take at rest. With fewer requests at work, CPUs are idle; with more, none finishes earlier, and each takes
longer. The idea is that of delay-based congestion control (L. Brakmo, L. Peterson, "TCP Vegas", 1995; N. Cardwell et
al., "BBR", 2016). If the limit is too low, requests take no longer than at rest, and the limit grows by a factor of up
to `SLOWDOWN` at each look.

Reads and writes have separate limits, since they wait for different things: reads for CPUs, writes also for an
fsync that they share. Each path has its own duration at rest, so that slow requests among quick ones do not look like a
queue.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Hashable
from itertools import takewhile

SLOWDOWN, SLOWDOWN_MILD = 2.0, 12.0
"""How many times its duration at rest a request may be at work: SLOWDOWN while at least half of the arriving requests
are refused, SLOWDOWN_MILD while hardly any is. Many requests at work share messages and commits, so more of them finish
in a second, but each takes longer. In a mild overload, that can be enough to refuse none. In a hard one, the requests
at work would only wait for longer."""
LOOKS = 10
"""The limit follows the better half of the last LOOKS looks, so that a short stall, for example of a disk, does not
lower it."""
STEP = 0.05
"""By this share a path's duration at rest is raised or lowered for each measurement above or below it. It converges to
the median, whatever the longest durations are."""
PATHS_MAX = 64
"""The most paths with a duration of their own. It is limited since paths contain names of labels and vectors."""
PLACE_S = 0.1
"""A request that has been at work for longer does not occupy a place."""
FRESH_S = 0.25
"""Requests that have been at work for longer are slow, or wait for something that hangs. They must not keep others
waiting."""


class AtWork:
    """The requests of one kind that are at work and began a short time ago. For the event loop's thread only.

    `least`: the lowest limit. `rest_s`: the assumed duration at rest of a path without measurements.
    """

    def __init__(self, least: int, rest_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._least = least
        self._clock = clock
        self._fresh: dict[Hashable, tuple[float, str, bool]] = {}  # (when it began, path, alone?), in this order
        self._usual_s = {"": rest_s}  # path → duration at rest; "" stands for all other paths
        self._ended_s = 0.0  # sum of the durations at rest of all that finished since the last look
        self._looked = clock()
        self._loads: deque[float] = deque(maxlen=LOOKS)
        """For each look, the mean number of requests at work if each had taken its duration at rest."""
        self.limit = least
        """How many should be at work while more arrive than finish."""

    def __len__(self) -> int:
        return len(self._fresh)

    def begin(self, request: Hashable, path: str, *, is_alone: bool) -> None:
        """A request is at work from now on. `is_alone`: its duration is a measurement of the duration at rest."""
        # Remove the connection's previous request, so that the order stays that of the start times.
        self._fresh.pop(request, None)
        self._fresh[request] = self._clock(), path, is_alone

    def end(self, request: Hashable) -> None:
        """The request has been answered. Has no effect if it is not one of these."""
        entry = self._fresh.pop(request, None)
        if entry is None:
            return
        began, path, is_alone = entry
        usual_s = self._usual_s
        path = path if path in usual_s or (is_alone and len(usual_s) < PATHS_MAX) else ""
        rest_s = usual_s.get(path, usual_s[""])
        if is_alone:
            usual_s[path] = rest_s * (1 + STEP if self._clock() - began > rest_s else 1 - STEP)
        self._ended_s += rest_s

    def leave(self, request: Hashable) -> bool:
        """Remove a request that is slow or waits for its client. Returns whether it was one of these."""
        return self._fresh.pop(request, None) is not None

    def fill(self, places: int) -> bool:
        """Whether the requests occupy all `places`. A request that has been at work for long may wait for a worker that
        hangs, so it gives its place to one other request; to no more, so that a stall does not admit all waiting
        requests at once."""
        return len(self._fresh) >= places and len(self._fresh) - self._slow() >= places

    def _slow(self) -> int:
        """How many have been at work for PLACE_S or longer."""
        began_max = self._clock() - PLACE_S
        return sum(1 for _ in takewhile(lambda began: began[0] <= began_max, self._fresh.values()))

    def look(self, refused_share: float) -> None:
        """Forget the requests that are slow, and set the limit. Call this at intervals. `refused_share`: the share of
        waiting requests that were refused."""
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
