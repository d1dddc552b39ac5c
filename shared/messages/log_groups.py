"""Messages of the methods for consumer groups of the log."""

from __future__ import annotations

import msgspec

from shared.messages.log import Range


class GroupBody(msgspec.Struct):
    """Methods log.group_get and log.group_delete, on the shard of the group's name."""

    name: str


class StoredGroup(msgspec.Struct, array_like=True):
    """A group as its shard stores it. `revision`: rises with each change, and is never used again for a group of this
    name, not even after the group has been deleted. `document`: the group's data, which only the coordinator
    understands. `members` and `prefix` are copies of parts of it, for lists."""

    revision: int
    members: int
    prefix: bytes
    document: bytes


class GroupReply(msgspec.Struct):
    """Reply to log.group_get. `floor`: if there is no group, the revision that it has before its first change."""

    group: StoredGroup | None
    floor: int


class GroupPutBody(msgspec.Struct):
    """Method log.group_put: store the group if its current revision is `expected`; that of no group is `floor`."""

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
    """Method log.group_read: the records of each shard that have a key with `prefix`, are within `range` and are in
    wanted slots, ascending, at most limits[shard] and about `page_bytes`. Method log.group_count: their number in all
    shards.

    `starts`: uint64[slots] little-endian, the first wanted sequence number of each slot (shared.log.slots). `shards`:
    the number of shards of the log.
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
    records within `range` and from the start of their slot on. The other fields are as in `SlotsBody`."""

    range: Range
    prefix: bytes
    starts: bytes
    shards: int
    after: bytes | None
    limit: int


class LagReply(msgspec.Struct):
    """(key, records) of each key."""

    keys: list[tuple[bytes, int]]
