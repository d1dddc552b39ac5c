"""Groups on their shards: each group is stored on the shard of its name."""

from __future__ import annotations

from coordinator.fanout.links import Links
from shared.hashing import shard_of
from shared.messages.log_groups import (
    GroupBody,
    GroupPutBody,
    GroupReply,
    GroupsReply,
    NamesBody,
    NamesReply,
    StoredGroup,
)
from shared.wire import pack, unpack


class GroupStore:
    """Every method raises Unavailable when the shard is missing or does not answer in time. The change may then have
    been made, or not."""

    def __init__(self, links: Links, timeout_s: float) -> None:
        self._links = links
        self._timeout_s = timeout_s

    async def get(self, name: str) -> tuple[StoredGroup | None, int]:
        """(the group or None, the revision that a new group begins with)."""
        body = pack(GroupBody(name))
        (reply,) = await self._links.call(
            "log.group_get", shards=[self._shard(name)], body=body, timeout_s=self._timeout_s
        )
        answer = unpack(reply.message.body, GroupReply)
        return answer.group, answer.floor

    async def put(self, name: str, expected: int, group: StoredGroup) -> None:
        """Store the group; it is on disk when this returns. Raises Conflict when its revision is not as expected."""
        body = pack(GroupPutBody(name, expected, group))
        await self._links.call("log.group_put", shards=[self._shard(name)], body=body, timeout_s=self._timeout_s)

    async def delete(self, name: str) -> None:
        """Raises NotFound."""
        body = pack(GroupBody(name))
        await self._links.call("log.group_delete", shards=[self._shard(name)], body=body, timeout_s=self._timeout_s)

    async def names(self, after: str, limit: int) -> tuple[list[tuple[str, int, bytes]], bool]:
        """((name, members, prefix) of the groups with greater names, ascending; whether there are more)."""
        body = pack(NamesBody(after, limit + 1))
        replies = await self._links.call("log.group_list", body=body, timeout_s=self._timeout_s)
        rows = [row for reply in replies for row in unpack(reply.message.body, GroupsReply).groups]
        rows.sort(key=lambda row: row[0].encode())
        return rows[:limit], len(rows) > limit

    async def cursor_names(self, after: str, limit: int) -> tuple[list[str], bool]:
        """(names of cursors greater than `after`, ascending; whether there are more)."""
        body = pack(NamesBody(after, limit + 1))
        replies = await self._links.call("log.cursor_list", body=body, timeout_s=self._timeout_s)
        names = [name for reply in replies for name in unpack(reply.message.body, NamesReply).names]
        names.sort(key=str.encode)
        return names[:limit], len(names) > limit

    def _shard(self, name: str) -> int:
        return shard_of(name.encode(), self._links.shards)
