"""Checks of the settings: contradictions, dangers, and budgets larger than the machine.

A setting that a start refuses is reported with the message of that start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import psutil

from coordinator.access.policy import is_loopback
from coordinator.doctor.finding import Finding, ok, problem, size, warning
from coordinator.headers.cors import Cors
from coordinator.limits.available_memory import Memory
from shared import config
from shared.config import Settings
from shared.environment import unknown_variables
from shared.errors import ConfigError

SETTINGS = "settings"
PROCESS_BYTES = 200 << 20
"""The memory of a process that has no data yet."""
SMALL_DISK_BYTES = 100 << 30
BUDGETS_SHARE_MAX = 0.9


def load(environ: Mapping[str, str] = os.environ) -> tuple[Settings | None, list[Finding]]:
    """Returns the settings, None if a start refuses them, and the findings about the environment."""
    findings = []
    for name, nearest in unknown_variables(environ).items():
        right = f"{nearest}, if that is meant" if nearest else "a name of the table in docs/operations.md"
        findings.append(problem(SETTINGS, name, "it is no setting; a start is refused", right))
    try:
        settings = config.load(environ)
    except ConfigError as error:
        findings.append(problem(SETTINGS, "settings", str(error), "what the message says; a start is refused"))
        return None, findings
    findings.append(ok(SETTINGS, "settings", "each can be used"))
    return settings, findings


def look(settings: Settings, disk_bytes: int) -> Iterator[Finding]:
    """`disk_bytes`: the size of the disk of the data directory, 0 if unknown."""
    yield from origins(settings)
    yield budgets(settings, Memory().total_bytes())
    yield from contradictions(settings)
    yield retention(settings, disk_bytes)
    yield from dangers(settings)


def origins(settings: Settings) -> Iterator[Finding]:
    try:
        Cors(settings)
    except ConfigError as error:
        yield problem(SETTINGS, "TRIPTYCH_CORS_ORIGIN", str(error), "what the message says; a start is refused")


def budgets(settings: Settings, memory: int) -> Finding:
    """Compares the memory that all settings together allow with the memory of the machine."""
    parts = {
        "TRIPTYCH_QUERIES_BYTES_MAX": settings.queries_bytes_max or psutil.virtual_memory().total // 4,
        "TRIPTYCH_BODIES_BYTES_MAX": settings.bodies_bytes_max,
        "TRIPTYCH_HEAD_BYTES": settings.head_bytes,
        "TRIPTYCH_BLOCK_CACHE_BYTES": settings.block_cache_bytes,
        "TRIPTYCH_UNSENT_BYTES_MAX": settings.unsent_bytes_max,
        "processes": (2 + settings.worker_count()) * PROCESS_BYTES,
    }
    together = sum(parts.values())
    seen = f"{size(together)} together, and there are {size(memory)}"
    if together <= BUDGETS_SHARE_MAX * memory:
        return ok(SETTINGS, "memory budgets", seen)
    listed = ", ".join(f"{name} {size(value)}" for name, value in sorted(parts.items(), key=lambda part: -part[1]))
    right = f"{size(BUDGETS_SHARE_MAX * memory)} or less, with room for the vectors and the index of series: {listed}"
    say = problem if together > memory else warning
    return say(SETTINGS, "memory budgets", seen, right)


def contradictions(settings: Settings) -> Iterator[Finding]:
    """Pairs of limits of which one can never be reached because of the other."""
    for smaller, larger in (
        ("body_bytes_max", "bodies_bytes_max"),
        ("decompressed_bytes_max", "bodies_bytes_max"),
        ("log_record_bytes_max", "log_batch_bytes_max"),
        ("log_batch_bytes_max", "decompressed_bytes_max"),
        ("label_value_bytes_max", "body_bytes_max"),
    ):
        low, high = getattr(settings, smaller), getattr(settings, larger)
        if low > high:
            names = [f"TRIPTYCH_{name.upper()}" for name in (smaller, larger)]
            seen = f"{size(low)}, more than {names[1]}, which is {size(high)}"
            yield warning(SETTINGS, names[0], seen, f"at most {size(high)}: more is never let in")
    together = settings.queries_bytes_max or psutil.virtual_memory().total // 4
    if settings.query_bytes_max > together:
        seen = f"{size(settings.query_bytes_max)}, more than all queries together may hold, {size(together)}"
        right = "at most that; TRIPTYCH_QUERIES_BYTES_MAX raises it"
        yield warning(SETTINGS, "TRIPTYCH_QUERY_BYTES_MAX", seen, right)
    if settings.memory_reserve_bytes > Memory().total_bytes():
        seen = f"{size(settings.memory_reserve_bytes)}, more than there is"
        yield problem(SETTINGS, "TRIPTYCH_MEMORY_RESERVE_BYTES", seen, "0; every write would be refused")
    if 0 < settings.retention_ms < settings.block_window_ms:
        seen = f"{settings.retention_ms / 1000:g} s, shorter than TRIPTYCH_BLOCK_WINDOW"
        right = f"{settings.block_window_ms / 1000:g} s or longer: blocks are dropped whole"
        yield warning(SETTINGS, "TRIPTYCH_RETENTION", seen, right)


def retention(settings: Settings, disk_bytes: int) -> Finding:
    name = "retention"
    bytes_ = settings.retention_bytes + settings.log_retention_bytes
    if disk_bytes and bytes_ > disk_bytes:
        seen = f"{size(bytes_)} of samples and log, on a disk of {size(disk_bytes)}"
        right = "TRIPTYCH_RETENTION_BYTES and TRIPTYCH_LOG_RETENTION_BYTES together well below the size of the disk"
        return problem(SETTINGS, name, seen, right)
    endless = [
        names[0]
        for names in (("TRIPTYCH_RETENTION", "retention"), ("TRIPTYCH_LOG_RETENTION", "log_retention"))
        if not getattr(settings, names[1] + "_ms") and not getattr(settings, names[1] + "_bytes")
    ]
    if endless and disk_bytes and disk_bytes < SMALL_DISK_BYTES:
        seen = f"{' and '.join(endless)} 0, nothing is ever dropped, on a disk of {size(disk_bytes)}"
        right = "a time, or a size such as " + ", ".join(
            f"{name}_BYTES={disk_bytes * 2 // 5 >> 20}MB" for name in endless
        )
        return warning(SETTINGS, name, seen, right)
    return ok(SETTINGS, name, f"bounded on a disk of {size(disk_bytes)}" if not endless else "nothing is ever dropped")


def dangers(settings: Settings) -> Iterator[Finding]:
    """Settings that give up safety or durability."""
    host, _ = settings.address()
    if settings.admin_api and not is_loopback(host):
        right = "false, except while series are deleted"
        yield warning(SETTINGS, "TRIPTYCH_ADMIN_API", f"true, and TRIPTYCH_LISTEN is {settings.listen}", right)
    if "*" in settings.allowed_hosts:
        right = "the names that clients use: a web page can otherwise read all data through a name of its own"
        yield warning(SETTINGS, "TRIPTYCH_ALLOWED_HOSTS", "*, any", right)
    if settings.core_dumps:
        yield warning(SETTINGS, "TRIPTYCH_CORE_DUMPS", "true", "false: a core file holds data")
    if settings.durability == "buffered":
        right = "synced, unless what was written in the last moments may be lost with the power"
        yield warning(SETTINGS, "TRIPTYCH_DURABILITY", "buffered", right)
