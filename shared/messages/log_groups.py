"""Messages of the methods that consumer groups of the log need."""

from __future__ import annotations

import msgspec

from shared.messages.log import Range


class GroupBody(msgspec.Struct):
    """Methods log.group_get and log.group_delete, on the shard of the group's name."""

    name: str


class StoredGroup(msgspec.Struct, array_like=True):
    """A group as its shard stores it. `revision`: rises with each change, and is never used again for a group of this
    name, not even after the group was deleted. `document`: the rest, which only the coordinator understands. `members`
    and `prefix` are copies, for lists."""

    revision: int
    members: int
    prefix: bytes
    document: bytes


class GroupReply(msgspec.Struct):
    """Reply to log.group_get. `floor`: the revision that a group has before its first change, if there is none."""

    group: StoredGroup | None
    floor: int


class GroupPutBody(msgspec.Struct):
    """Method log.group_put: store the group if its revision is `expected` now; there being none counts as `floor`."""

    name: str
    expected: int
    group: StoredGroup


class NamesBody(msgspec.Struct):
    """Methods log.group_list and log.cursor_list: names greater than `after` in ascending order, at most `limit`."""

    after: str
    limit: int


class GroupsReply(msgspec.Struct):
    """(name, members, prefix) of each group."""

    groups: list[tuple[str, int, bytes]]


class NamesReply(msgspec.Struct):
    names: list[str]


class SlotsBody(msgspec.Struct):
    """Method log.group_read: of each shard, records of the keys with `prefix` within `range` that are in wanted slots,
    ascending, at most limits[shard] and about `page_bytes`. Method log.group_count: how many there are in all shards.

    `starts`: uint64[slots] little-endian, the first sequence number wanted of each slot (shared.log_slots); `shards`:
    of the whole log.
    """

    range: Range
    prefix: bytes
    starts: bytes
    shards: int
    limits: dict[int, int] = {}
    page_bytes: int = 0


class SlotsReply(msgspec.Struct):
    """Reply to log.group_read: (next, done) of each page (`ScanReply`). Frames: the `Records` of all pages, one page
    after another, each with as many frames."""

    pages: list[tuple[int, bool]]


class LagBody(msgspec.Struct):
    """Method log.group_lag: up to `limit` distinct keys greater than `after`, ascending, with the number of their
    records within `range`, of each slot from its start on. The rest is as in `SlotsBody`."""

    range: Range
    prefix: bytes
    starts: bytes
    shards: int
    after: bytes | None
    limit: int


class LagReply(msgspec.Struct):
    """(key, records) of each key."""

    keys: list[tuple[bytes, int]]
