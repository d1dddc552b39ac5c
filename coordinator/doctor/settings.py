"""Checks of the settings: contradictions, dangers, and budgets larger than the machine.

A setting that a start refuses is reported with the message of that start."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import psutil

from coordinator.access.policy import is_loopback
from coordinator.doctor.finding import REFUSED, Finding, ok, problem, size, warning
from coordinator.headers.cors import Cors
from coordinator.limits.available_memory import Memory
from shared import setting_sources
from shared.durations import format_duration
from shared.environment import unknown_variables
from shared.errors import ConfigError
from shared.settings import Settings

SETTINGS = "settings"
PROCESS_BYTES = 200 << 20
"""The memory of a process that has no data yet."""
SMALL_DISK_BYTES = 100 << 30
BUDGETS_SHARE_MAX = 0.9


def load(environ: Mapping[str, str] = os.environ) -> tuple[Settings | None, list[Finding]]:
    """Returns the settings, None if a start refuses them, and the findings about the environment."""
    findings = []
    for name, nearest in unknown_variables(environ).items():
        right = f"use {nearest}, the most similar setting, or unset it" if nearest else "unset it"
        right += "; the service refuses to start with a TRIPTYCH_ variable that docs/operations.md does not list"
        findings.append(problem(SETTINGS, name, "there is no such setting", right))
    try:
        settings = setting_sources.load(environ)
    except ConfigError as error:
        findings.append(problem(SETTINGS, "settings", str(error), REFUSED))
        return None, findings
    findings.append(ok(SETTINGS, "settings", "all values are valid"))
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
        yield problem(SETTINGS, "TRIPTYCH_CORS_ORIGIN", str(error), REFUSED)


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
    seen = f"{size(together)} in total; the machine has {size(memory)}"
    if together <= BUDGETS_SHARE_MAX * memory:
        return ok(SETTINGS, "memory budgets", seen)
    listed = ", ".join(f"{name} {size(value)}" for name, value in sorted(parts.items(), key=lambda part: -part[1]))
    right = (
        f"lower them to {size(BUDGETS_SHARE_MAX * memory)} in total, to leave room for vectors and the index of "
        f"series: {listed}"
    )
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
            yield warning(
                SETTINGS, names[0], seen, f"set it to at most {size(high)}: {names[1]} refuses anything larger"
            )
    together = settings.queries_bytes_max or psutil.virtual_memory().total // 4
    if settings.query_bytes_max > together:
        seen = f"{size(settings.query_bytes_max)}, more than the {size(together)} of all queries together"
        right = f"set it to at most {size(together)}, or raise TRIPTYCH_QUERIES_BYTES_MAX"
        yield warning(SETTINGS, "TRIPTYCH_QUERY_BYTES_MAX", seen, right)
    if settings.memory_reserve_bytes > Memory().total_bytes():
        seen = f"{size(settings.memory_reserve_bytes)}, more than the machine's memory"
        right = "set it to 0, for the default; with this value, every write is refused"
        yield problem(SETTINGS, "TRIPTYCH_MEMORY_RESERVE_BYTES", seen, right)
    if 0 < settings.retention_ms < settings.block_window_ms:
        seen = f"{format_duration(settings.retention_ms)}, shorter than TRIPTYCH_BLOCK_WINDOW"
        right = f"set it to at least {format_duration(settings.block_window_ms)}: samples are dropped a block at a time"
        yield warning(SETTINGS, "TRIPTYCH_RETENTION", seen, right)


def retention(settings: Settings, disk_bytes: int) -> Finding:
    name = "retention"
    bytes_ = settings.retention_bytes + settings.log_retention_bytes
    if disk_bytes and bytes_ > disk_bytes:
        seen = f"{size(bytes_)} of samples and log records, on a disk of {size(disk_bytes)}"
        right = "set TRIPTYCH_RETENTION_BYTES and TRIPTYCH_LOG_RETENTION_BYTES to much less than the disk in total"
        return problem(SETTINGS, name, seen, right)
    endless = {}
    if not settings.retention_ms and not settings.retention_bytes:
        endless["samples"] = "TRIPTYCH_RETENTION"
    if not settings.log_retention_ms and not settings.log_retention_bytes:
        endless["log records"] = "TRIPTYCH_LOG_RETENTION"
    if not endless:
        return ok(SETTINGS, name, "samples and log records are dropped as configured")
    seen = f"{' and '.join(endless)} are never dropped"
    if not disk_bytes or disk_bytes >= SMALL_DISK_BYTES:
        return ok(SETTINGS, name, seen)
    share = f"{disk_bytes * 2 // 5 >> 20}MB"
    right = "set " + " and ".join(f"{variable} or {variable}_BYTES={share}" for variable in endless.values())
    return warning(SETTINGS, name, f"{seen}, on a disk of {size(disk_bytes)}", right)


def dangers(settings: Settings) -> Iterator[Finding]:
    """Settings that give up safety or durability."""
    host, _ = settings.address()
    if settings.admin_api and not is_loopback(host):
        right = "set it to false, except while you delete series or make backups"
        yield warning(SETTINGS, "TRIPTYCH_ADMIN_API", f"true, and TRIPTYCH_LISTEN is {settings.listen}", right)
    if "*" in settings.allowed_hosts:
        right = "list the names that clients use: with *, a web page can read all data through a host name of its own"
        yield warning(SETTINGS, "TRIPTYCH_ALLOWED_HOSTS", "*, which accepts every host name", right)
    if settings.core_dumps:
        yield warning(SETTINGS, "TRIPTYCH_CORE_DUMPS", "true", "set it to false: a core file contains data")
    if settings.durability == "buffered":
        right = "set it to synced, unless a power loss may lose the last writes"
        yield warning(SETTINGS, "TRIPTYCH_DURABILITY", "buffered", right)
