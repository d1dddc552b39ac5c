"""How the interpreter of a process that serves is set: what its own defaults would cost a request."""

from __future__ import annotations

import gc
import sys

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""Objects made and not freed before the collector looks at the young ones; Python's own 700 is a few requests."""
SWITCH_S = 0.0005
"""How long a thread that computes may keep the interpreter from the others. Python's own 5 ms would be added to a
request each time it comes back from a kernel or the disk, beside one that decodes a large body."""


def collect_seldom() -> None:
    """Leave what is there now (imported modules) out of every later collection, and have those come seldom: requests
    leave hardly a cycle, and looking for them took a twentieth of the time. Call when everything is imported; forked
    processes share those pages, as nothing writes to them any more."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)


def switch_often() -> None:
    """Have threads take turns more often than Python's own. Forked processes inherit it."""
    sys.setswitchinterval(SWITCH_S)
