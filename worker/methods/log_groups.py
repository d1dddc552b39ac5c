"""The worker's methods for consumer groups of the log, and for the lists of group names and cursor names."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
import numpy as np

from shared.log.slots import SlotFilter, slot_of
from shared.messages import log, log_groups
from shared.messages.log_pages import check_progress
from shared.wire import Reply, Request, pack, unpack
from worker.logs import cursors, groups, key_lists, reading
from worker.methods.method import Method, check, require_time
from worker.shard import Shard

Shards = Mapping[int, Shard]


def get(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupBody)
    (shard,) = shards.values()
    return Reply(pack(log_groups.GroupReply(*groups.get(shard.logs, body.name))))


def put(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupPutBody)
    (shard,) = shards.values()
    groups.put(shard.logs, body.name, body.expected, body.group, partial(check, request))
    return Reply()


def delete(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.GroupBody)
    (shard,) = shards.values()
    groups.delete(shard.logs, body.name, partial(check, request))
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
    """The pages of a light request end when its CPU time is used up."""
    body = unpack(request.body, log_groups.SlotsBody)
    slots = _slots(body)
    reply, frames = log_groups.SlotsReply([]), []
    for number, shard in shards.items():
        limit = body.limits[number]
        page = reading.merge(
            shard.logs,
            body.range,
            body.prefix,
            limit,
            partial(require_time, request),
            slots=slots,
            page_bytes=body.page_bytes,
            processor=request.processor,
        )
        check_progress(page, body.range.start, body.range.end)
        reply.pages.append((page.next, page.done))
        frames += page.records.frames()
    return Reply(pack(reply), frames)


def count(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.SlotsBody)
    is_allowed, slots = partial(check, request), _slots(body)
    counts = (reading.count_prefix(shard.logs, body.range, body.prefix, is_allowed, slots) for shard in shards.values())
    return Reply(pack(log.CountReply(sum(counts))))


def lag(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log_groups.LagBody)
    is_allowed, slots = partial(check, request), _slots(body)
    keys: list[tuple[bytes, Shard]] = []
    for shard in shards.values():
        page = key_lists.keys(shard.logs, body.range, body.prefix, body.after, body.limit, is_allowed)
        keys += [(key, shard) for key in page]
    keys.sort(key=lambda row: row[0])
    rows = []
    for key, shard in keys[: body.limit]:
        start = max(body.range.start, int(slots.starts[slot_of(key, body.shards)]))
        span = msgspec.structs.replace(body.range, start=start)
        rows.append((key, reading.count_key(shard.logs, span, key, is_allowed) if start < span.end else 0))
    return Reply(pack(log_groups.LagReply(rows)))


def _slots(body: log_groups.SlotsBody | log_groups.LagBody) -> SlotFilter:
    return SlotFilter(np.frombuffer(body.starts, "<u8").astype(np.uint64, copy=False), body.shards)


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
