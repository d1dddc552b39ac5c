"""Consumer groups of the log as documents, each with a revision for compare-and-set.

Durability: when `put` or `delete` returns, the change survives the loss of power.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from shared.errors import Conflict, NotFound, Overloaded
from shared.messages.log_groups import StoredGroup
from worker.logs import rows
from worker.logs.part import LogPart

GROUPS_MAX = 1000
"""Groups of one shard: a group may take 100 KB of the store, and of the coordinator's memory while it is in use."""

_GROUP = msgspec.msgpack.Decoder(StoredGroup)
_encode = msgspec.msgpack.encode


def get(part: LogPart, name: str) -> tuple[StoredGroup | None, int]:
    """(the group or None, the shard's floor: revisions of a new group are above it)."""
    value = part.store.get("meta", rows.group(name))
    return (None if value is None else _GROUP.decode(value)), _floor(part)


def _floor(part: LogPart) -> int:
    return int.from_bytes(part.store.get("meta", rows.GROUPS_FLOOR) or b"", "big")


def put(part: LogPart, name: str, expected: int, group: StoredGroup, check: Callable[[], None]) -> None:
    """Raises Conflict when the revision is not as expected, Overloaded for one group too many. `check` raises when the
    request's time is up."""
    assert group.revision > expected, "a revision rises with each change"
    changes = part.store.batch()
    with part.lock:
        check()
        stored, floor = get(part, name)
        now = floor if stored is None else stored.revision
        if now != expected:
            raise Conflict(f"group {name!r} is at revision {now}, expected was {expected}")
        if stored is None and sum(1 for _ in named(part, "", GROUPS_MAX)) == GROUPS_MAX:
            raise Overloaded(f"shard has {GROUPS_MAX} groups of the log, which is the limit; delete some first")
        changes.put("meta", rows.group(name), _encode(group))
        part.store.write(changes)
    part.store.sync()


def delete(part: LogPart, name: str, check: Callable[[], None]) -> None:
    """The floor rises above the group's revision, so that nothing that was sent about this group fits a later group of
    the same name. Raises NotFound."""
    changes = part.store.batch()
    with part.lock:
        check()
        stored, floor = get(part, name)
        if stored is None:
            raise NotFound(f"there is no group {name!r}")
        changes.put("meta", rows.GROUPS_FLOOR, rows.sequence_bytes(max(floor, stored.revision + 1)))
        changes.delete("meta", rows.group(name))
        part.store.write(changes)
    part.store.sync()


def named(part: LogPart, after: str, limit: int) -> Iterator[tuple[str, StoredGroup]]:
    """(name, group) of the groups with greater names, ascending by the bytes of their names."""
    start = rows.group(after) + b"\0" if after else rows.GROUPS
    for count, (row, value) in enumerate(part.store.scan("meta", start, rows.after(rows.GROUPS))):
        if count == limit:
            return
        yield rows.unended(row[len(rows.GROUPS) :]).decode(), _GROUP.decode(value)
