"""The limit on files that a process may have open. Sockets count."""

from __future__ import annotations

import logging
import resource

from shared.telemetry import event

ENDLESS = 1 << 20
"""The number that is returned if there is no limit."""

OWN_FILES, SHARD_FILES = 256, 512
"""How many files a worker may have open for itself, and for each of its shards: half of these are for its store, the
others for blocks."""


def needed_by_worker(shards: int, workers: int) -> int:
    """How many files the worker with the most shards may have open."""
    return OWN_FILES + -(-shards // workers) * SHARD_FILES


def raise_limit() -> None:
    """Raise the soft limit to the hard one. The soft limit of 1024 that most systems set is for programs that use
    `select`; forked processes inherit the new one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # some systems refuse an unlimited number
        event(logging.WARNING, "the limit of open files cannot be raised", soft=soft, hard=hard, why=error)


def limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ENDLESS if soft == resource.RLIM_INFINITY else soft


def warn_below(needed: int) -> None:
    """Log a warning if this process may need more files than it can open."""
    if limit() < needed:
        event(logging.WARNING, "the limit of open files is low", limit=limit(), needed=needed)
