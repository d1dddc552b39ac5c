"""Settings of the interpreter in processes that serve requests."""

from __future__ import annotations

import gc
import sys
import sysconfig

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""Objects that are allocated and not freed before the collector examines the young ones; Python's default, 700, is
reached after a few requests."""
SWITCH_S = 0.0005
"""How long a computing thread may keep the interpreter from other threads, in seconds. With Python's default of 5 ms, a
request would wait that long each time it returns from a kernel or the disk while another thread decodes a large
body."""


def collect_seldom() -> None:
    """Exclude the objects that exist now (imported modules) from all later collections, and make collections rare:
    requests leave hardly any cycles, and the search for them took a twentieth of the time. Call this when everything is
    imported. Forked processes share these pages, as nothing writes to them any more.

    What is garbage now stays: less than a megabyte, and finding it would take the start some 50 ms."""
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.enable()


def switch_often() -> None:
    """Make threads take turns more often than by Python's default. Forked processes inherit this."""
    sys.setswitchinterval(SWITCH_S)


def is_optimised() -> bool:
    """Whether this Python was compiled for speed (by profile-guided optimisation), as far as it tells.

    Those of operating systems are. Whoever compiles one without asking for it (`--enable-optimizations`), as pyenv does
    by default, gets one that needs a quarter more processor time."""
    return sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
