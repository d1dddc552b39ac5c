"""How many processors there are for this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")


def usable(groups: Path = CONTROL_GROUPS) -> float:
    """Processors that this process may use: by its affinity, and by the quota of its control group, such as that of a
    container."""
    count: float = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = (groups / "cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count
