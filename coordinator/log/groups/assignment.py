"""Divides the slots of a group among its members."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NOBODY = -1

Owners = NDArray[np.int16]
"""int16[slots]: the place of each slot's owner in the list of members, or NOBODY."""


def divided(owners: Owners, members: int) -> Owners:
    """The slots divided evenly, so that as few of them as possible change hands. A member's slots stay together where
    possible: the records of a shard that only one member reads are examined once only."""
    if not members:
        return np.full(len(owners), NOBODY, np.int16)
    counts = np.bincount(owners[owners >= 0], minlength=members)
    least, more = divmod(len(owners), members)
    quotas = np.full(members, least)
    quotas[np.argsort(-counts, kind="stable")[:more]] += 1  # one slot more for those that have the most
    after = owners.copy()
    for member in range(members):
        slots = np.flatnonzero(after == member)
        after[slots[quotas[member] :]] = NOBODY
    missing_slots = quotas - np.bincount(after[after >= 0], minlength=members)
    after[after == NOBODY] = np.repeat(np.arange(members, dtype=np.int16), missing_slots)
    return after


def ranges_of(owners: Owners, member: int) -> list[tuple[int, int]]:
    """The member's slots as ranges first ≤ slot < end, ascending."""
    is_owned = np.concatenate(([False], owners == member, [False]))
    edges = np.flatnonzero(is_owned[1:] != is_owned[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
