"""The worker's methods for consumer groups of the log, and for the lists of group names and cursor names."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from shared.errors import DeadlineExceeded
from shared.log.slots import SlotFilter, slot_of
from shared.messages import log, log_groups
from shared.messages.log_pages import check_progress
from shared.wire import Reply, Request, pack, unpack
from worker.logs import cursors, groups, reading
from worker.methods.method import Method
from worker.shard import Shard

Shards = Mapping[int, Shard]


def get(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupBody)
    (shard,) = shards.values()
    return Reply(pack(log_groups.GroupReply(*groups.get(shard.logs, body.name))))


def put(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupPutBody)
    (shard,) = shards.values()
    groups.put(shard.logs, body.name, body.expected, body.group, _deadline_check(request))
    return Reply()


def delete(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupBody)
    (shard,) = shards.values()
    groups.delete(shard.logs, body.name, _deadline_check(request))
    return Reply()


def names(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.NamesBody)
    named_groups = [row for shard in shards.values() for row in groups.named(shard.logs, body.after, body.limit)]
    named_groups.sort(key=lambda row: row[0].encode())
    rows = [(name, group.members, group.prefix) for name, group in named_groups[: body.limit]]
    return Reply(pack(log_groups.GroupsReply(rows)))


def cursor_names(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.NamesBody)
    all_names = [name for shard in shards.values() for name in cursors.names(shard.logs, body.after, body.limit)]
    return Reply(pack(log_groups.NamesReply(sorted(all_names, key=str.encode)[: body.limit])))


def read(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.SlotsBody)
    check, slots = _deadline_check(request), _slots(body)
    reply, frames = log_groups.SlotsReply([]), []
    for number, shard in shards.items():
        limit = body.limits[number]
        page = reading.merge(shard.logs, body.range, body.prefix, limit, check, None, slots, body.page_bytes)
        check_progress(page, body.range.start, body.range.end)
        reply.pages.append((page.next, page.done))
        frames += page.records.frames()
    return Reply(pack(reply), frames)


def count(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.SlotsBody)
    check, slots = _deadline_check(request), _slots(body)
    counts = (reading.count_prefix(shard.logs, body.range, body.prefix, check, slots) for shard in shards.values())
    return Reply(pack(log.CountReply(sum(counts))))


def lag(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.LagBody)
    check, slots = _deadline_check(request), _slots(body)
    keys: list[tuple[bytes, Shard]] = []
    for shard in shards.values():
        page = reading.keys(shard.logs, body.range, body.prefix, body.after, body.limit, check)
        keys += [(key, shard) for key in page]
    keys.sort(key=lambda row: row[0])
    rows = []
    for key, shard in keys[: body.limit]:
        start = max(body.range.start, int(slots.starts[slot_of(key, body.shards)]))
        span = msgspec.structs.replace(body.range, start=start)
        rows.append((key, reading.count_key(shard.logs, span, key, check) if start < span.end else 0))
    return Reply(pack(log_groups.LagReply(rows)))


def _slots(body: log_groups.SlotsBody | log_groups.LagBody) -> SlotFilter:
    return SlotFilter(np.frombuffer(body.starts, "<u8").astype(np.uint64, copy=False), body.shards)


def _deadline_check(request: Request) -> Callable[[], None]:
    """A function that raises DeadlineExceeded once the request's time is up."""

    def check() -> None:
        if request.time_left == 0:
            raise DeadlineExceeded(f"{request.method} took longer than its deadline")

    return check


METHODS: dict[str, Method] = {
    "log.group_get": Method(get, "read"),
    "log.group_put": Method(put, "write"),
    "log.group_delete": Method(delete, "write"),
    "log.group_list": Method(names, "read"),
    "log.cursor_list": Method(cursor_names, "read"),
    "log.group_read": Method(read, "query"),
    "log.group_count": Method(count, "query"),
    "log.group_lag": Method(lag, "query"),
}
