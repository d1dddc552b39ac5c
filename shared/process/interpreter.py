"""Settings of the interpreter in processes that serve requests."""

from __future__ import annotations

import gc
import sys
import sysconfig

COLLECTOR_THRESHOLDS = (20_000, 20, 20)
"""The first is the number of new objects that start a collection of the young generation. Python's default, 700, is
reached after a few requests."""
SWITCH_S = 0.0005
"""How long, in seconds, a thread may hold the interpreter lock while others wait for it. With Python's default of 5 ms,
a request would wait that long whenever it returns from a kernel or from the disk while another thread decodes a large
body."""


def collect_seldom() -> None:
    """Exclude all existing objects (imported modules) from later collections, and make collections rare: requests leave
    hardly any cycles, and the search for them took a twentieth of the time. Call this after all imports. Forked
    processes share the memory of these objects, since the collector no longer writes to it.

    Existing garbage is kept: it is less than a megabyte, and collecting it would lengthen the start by about 50 ms.
    """
    gc.freeze()
    gc.set_threshold(*COLLECTOR_THRESHOLDS)
    gc.enable()


def switch_often() -> None:
    """Make threads switch more often than by Python's default. Forked processes inherit this."""
    sys.setswitchinterval(SWITCH_S)


def is_optimised() -> bool:
    """Whether this Python was compiled with profile-guided optimisation, as far as it can be determined.

    The Pythons of operating systems are. A Python compiled without `--enable-optimizations`, as by pyenv's default,
    takes a quarter more CPU time.
    """
    return sys.base_prefix == "/usr" or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
