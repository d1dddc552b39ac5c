"""Renews what a forked process must not share with its parent."""

from __future__ import annotations

import os
import weakref
from typing import Any, Callable, TypeVar

T = TypeVar("T")
_renewals: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def renew_in_forks(owner: T, renew: Callable[[T], None]) -> None:
    """Call `renew(owner)` in each forked process, before any of its threads can use the owner."""
    _renewals[owner] = renew


def _renew() -> None:
    for owner, renew in list(_renewals.items()):
        renew(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
