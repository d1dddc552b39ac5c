"""How much more memory the processes of this machine or container can have."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

UNLIMITED_BYTES = 1 << 60
"""Control groups of version 1 give a number above this for no limit."""
_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """The files of a control group that bounds memory. `cache_field`: of its statistics, the bytes of files' contents
    that are given back when memory is short."""

    limit_file: Path
    used_file: Path
    statistics_file: Path
    cache_field: str

    def limit_bytes(self) -> int | None:
        """None without a limit."""
        try:
            limit = int(self.limit_file.read_text())
        except (OSError, ValueError):  # "max"
            return None
        return limit if limit < UNLIMITED_BYTES else None

    def available_bytes(self) -> int | None:
        """Of the limit, what is not in use. None without a limit."""
        limit = self.limit_bytes()
        if limit is None:
            return None
        try:
            used = int(self.used_file.read_text())
        except (OSError, ValueError):
            return None
        return max(0, limit - used + self._cache_bytes())

    def _cache_bytes(self) -> int:
        with suppress(OSError, ValueError):
            for line in self.statistics_file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == self.cache_field:
                    return int(value)
        return 0


def control_groups(own: Path = Path("/proc/self/cgroup"), root: Path = _CGROUPS) -> list[ControlGroup]:
    """The control groups of this process that have a limit of memory: its own and those around it."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    groups = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "memory" if controllers else root
        path = top / name.lstrip("/")
        # In a container, the path may be one of the host, and the group of the container is the top one.
        for directory in dict.fromkeys([path, *(parent for parent in path.parents if parent.is_relative_to(top)), top]):
            group = _version_1(directory) if controllers else _version_2(directory)
            if group.limit_bytes() is not None:
                groups.append(group)
    return groups


def _version_1(directory: Path) -> ControlGroup:
    return ControlGroup(
        directory / "memory.limit_in_bytes",
        directory / "memory.usage_in_bytes",
        directory / "memory.stat",
        "total_inactive_file",
    )


def _version_2(directory: Path) -> ControlGroup:
    return ControlGroup(
        directory / "memory.max", directory / "memory.current", directory / "memory.stat", "inactive_file"
    )


class Memory:
    """The memory of the machine, or of the control group with the least left. Reading it takes some 50 µs."""

    def __init__(self) -> None:
        self._groups = control_groups()
        self._machine_bytes = psutil.virtual_memory().available
        """What the machine had available when the kernel said so last."""

    def total_bytes(self) -> int:
        limits = [limit for group in self._groups if (limit := group.limit_bytes()) is not None]
        return min([psutil.virtual_memory().total, *limits])

    def available_bytes(self) -> int:
        available = [bytes_ for group in self._groups if (bytes_ := group.available_bytes()) is not None]
        with suppress(OSError):  # such as while no more files can be opened
            self._machine_bytes = psutil.virtual_memory().available
        return min([self._machine_bytes, *available])
