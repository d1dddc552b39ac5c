"""The number of CPUs available to this process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")


def usable(groups: Path = CONTROL_GROUPS) -> float:
    """The number of CPUs that this process may use: bounded by its affinity and by the quota of its control group, such
    as a container's."""
    count: float = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = (groups / "cpu.max").read_text().split()
        count = min(count, int(quota) / int(period))
    return count
