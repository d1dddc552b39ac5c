"""Checks of the disk that has the data: free space, the kind of file system, and how long a sync takes."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.doctor.finding import Finding, ok, problem, size, warning

DISK = "machine"
FREE_MIN_BYTES = 1 << 30
FREE_SHARE_PROBLEM, FREE_SHARE_WARNING = 0.05, 0.15
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
OF_CONTAINERS = ("overlay", "aufs")
OVER_THE_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "fuse", "fuseblk", "virtiofs", "vboxsf")
SYNCS = 15
SYNCS_S = 2.0
SYNC_BYTES = 4096
SYNC_SLOW_S, SYNC_TOO_SLOW_S = 0.010, 0.100
SYNC_UNLIKELY_S = 0.000_005
_MOUNTS = Path("/proc/self/mounts")


def look(data: Path) -> Iterator[Finding]:
    """All checks of the disk of the data directory, or of the disk on which it will be created."""
    place = existing(data)
    try:
        status = os.statvfs(place)
    except OSError as error:
        yield problem(DISK, "disk", f"{place} cannot be read: {error.strerror}", "make it readable for this user")
        return
    yield room(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)
    yield files(status.f_favail, status.f_files)
    kind = file_system(place, _MOUNTS.read_text())
    yield kind_of_file_system(kind)
    yield writable(place) or sync_time(syncs(place), kind)


def existing(data: Path) -> Path:
    """The directory, or, if it does not exist yet, its closest parent that does."""
    place = data.resolve()
    while not place.exists():
        place = place.parent
    return place


def total_bytes(data: Path) -> int:
    """The size of the disk in bytes; 0 if it is unknown."""
    try:
        status = os.statvfs(existing(data))
    except OSError:
        return 0
    return status.f_blocks * status.f_frsize


def room(free: int, total: int) -> Finding:
    seen = f"{size(free)} of {size(total)} free"
    right = (
        f"keep {FREE_SHARE_WARNING:.0%} free: enlarge the disk, or limit the data with TRIPTYCH_RETENTION_BYTES and "
        "TRIPTYCH_LOG_RETENTION_BYTES"
    )
    if free < min(FREE_MIN_BYTES, total / 2) or free < FREE_SHARE_PROBLEM * total:
        return problem(DISK, "disk", seen, right)
    if free < FREE_SHARE_WARNING * total:
        return warning(DISK, "disk", seen, right)
    return ok(DISK, "disk", seen)


def files(free: int, total: int) -> Finding:
    """`total`: 0 if the file system does not count files."""
    if total == 0:
        return ok(DISK, "inodes", "unlimited")
    seen = f"{free} of {total} free"
    if free < FREE_SHARE_PROBLEM * total:
        right = "remove files, since each needs an inode; `du --inodes` shows which directories have many"
        return problem(DISK, "inodes", seen, right)
    return ok(DISK, "inodes", seen)


def file_system(place: Path, mounts: str) -> str:
    """The type of the file system that has `place`, from the lines of /proc/self/mounts; empty if unknown."""
    found, longest = "", -1
    for line in mounts.splitlines():
        _, point, kind, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        # If two file systems are mounted at one place, the later one hides the other.
        if place.is_relative_to(point) and len(point) >= longest:
            found, longest = kind, len(point)
    return found


def kind_of_file_system(kind: str) -> Finding:
    name = "file system"
    if kind in IN_MEMORY:
        return problem(DISK, name, kind, "use a disk: this is memory, and all data is lost when the machine stops")
    if kind in OF_CONTAINERS:
        return warning(
            DISK, name, kind, "use a volume: a container's own layer is slow, and is deleted with the container"
        )
    if kind.split(".")[0] in OVER_THE_NETWORK:
        return warning(
            DISK, name, kind, "use a local disk: over a network, syncs and locks may be slow or without effect"
        )
    return ok(DISK, name, kind or "unknown")


def writable(place: Path) -> Finding | None:
    """A problem if files cannot be written there."""
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x")
    except OSError as error:
        right = "use a directory that this user may write to, on a disk that is mounted for writing"
        return problem(DISK, "writing", f"{place} cannot be written: {error.strerror}", right)
    return None


def syncs(place: Path) -> list[float]:
    """How long each sync of a small unnamed file took, in seconds. This takes some seconds at most, unless a single
    sync takes longer."""
    took: list[float] = []
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        began = time.perf_counter()
        while len(took) < SYNCS and time.perf_counter() - began < SYNCS_S:
            file.write(bytes(SYNC_BYTES))
            started = time.perf_counter()
            os.fsync(file.fileno())
            took.append(time.perf_counter() - started)
    return took


def sync_time(took: list[float], kind: str) -> Finding:
    median, worst = statistics.median(took), max(took)
    seen = f"{median * 1000:.2f} ms in the median, {worst * 1000:.2f} ms at most, of {len(took)} syncs"
    right = f"use a disk that takes less than {SYNC_SLOW_S * 1000:g} ms: every durable write waits for a sync"
    if median > SYNC_TOO_SLOW_S:
        return problem(DISK, "sync", seen, right)
    if median > SYNC_SLOW_S:
        return warning(DISK, "sync", seen, right)
    if median < SYNC_UNLIKELY_S and kind not in IN_MEMORY:
        right = "make syncs reach the disk, since none is this fast; otherwise a power loss loses acknowledged data"
        return warning(DISK, "sync", seen, right)
    return ok(DISK, "sync", seen)
