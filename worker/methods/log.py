"""The worker's methods for the log area."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from shared.errors import Unavailable
from shared.messages import log
from shared.messages.log_pages import Page, check_progress, merge_pages
from shared.wire import Reply, Request, pack, unpack
from worker.logs import cursors, key_lists, policies, reading, times, trimming, writing
from worker.logs.examination import Examination
from worker.logs.keeper import Keeper
from worker.logs.part import LogPart
from worker.methods.method import Method, check, require_time
from worker.shard import Shard

Shards = Mapping[int, Shard]


def append(shards: Shards, request: Request) -> Reply:
    """Store each shard's part of a group. If `durable`, the records are on the disk when this returns."""
    body = unpack(request.body, log.AppendBody)
    if request.time_left == 0:
        return Reply(shard_errors=dict.fromkeys(shards, writing.PAST_DEADLINE))
    arrivals = {}
    for number, shard in shards.items():
        (frame,) = request.parts[number]
        arrivals[number] = shard.logs, writing.message_of(body, number, frame)
    return Reply(shard_errors=writing.append(arrivals, body.durable, lambda: request.time_left == 0, body.life))


def sync(shards: Shards, request: Request) -> Reply:
    """When this returns, everything that was appended before is on the disk, except on the shards in
    `shard_errors`."""
    failed: dict[int, str] = {}
    synced: dict[Keeper, str] = {}
    for number, shard in shards.items():
        keeper = shard.logs.keeper
        if keeper not in synced:
            synced[keeper] = _reason(keeper.sync)
        if synced[keeper]:
            failed[number] = synced[keeper]
    return Reply(shard_errors=failed)


def _reason(act: Callable[[], None]) -> str:
    """Call `act`. Returns why it was refused, or "" if it succeeded."""
    try:
        act()
    except Unavailable as error:
        return str(error)
    return ""


def _each(shards: Shards, act: Callable[[LogPart], None]) -> dict[int, str]:
    """Call `act` for each shard. Returns shard → why it refused."""
    reasons = {number: _reason(partial(act, shard.logs)) for number, shard in shards.items()}
    return {number: reason for number, reason in reasons.items() if reason}


def revoke(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.RevokeBody)
    return Reply(shard_errors=_each(shards, lambda part: part.revoke(body.segment, body.group, body.spans, body.life)))


def drop(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.DropBody)
    return Reply(shard_errors=_each(shards, lambda part: part.drop(body.first_segment, body.start)))


def recover(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.RecoverBody)
    reply = log.RecoverReply({}, {}, {}, {})
    for number, shard in shards.items():
        next_sequence, settled, groups = shard.logs.recover(body.epoch, body.settled, body.first_segment, body.life)
        reply.next[number], reply.settled[number], reply.groups[number] = next_sequence, settled, groups
        reply.times_ms[number] = shard.logs.newest_ms
        reply.segments[number] = shard.logs.segments()
        reply.dropped[number] = shard.logs.dropped
        if shard.logs.damage.texts("log"):
            reply.damaged.append(number)
    return Reply(pack(reply))


def scan(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.ScanBody)
    (shard,) = shards.values()
    return _page_reply(body, reading.scan(shard.logs, body.range, body.key, body.limit, body.reverse))


def search(shards: Shards, request: Request) -> Reply:
    """As `scan`, with a search, which belongs in the lanes of queries. The page of a light request ends when its CPU
    time is used up."""
    body = unpack(request.body, log.ScanBody)
    examination = _examination(body.search or log.Search(), partial(require_time, request))
    assert examination is not None
    (shard,) = shards.values()
    page = reading.search_key(
        shard.logs, body.range, body.key, body.limit, body.reverse, examination, request.processor
    )
    return _page_reply(body, page, examination)


def _examination(search: log.Search | None, check: Callable[[], None]) -> Examination | None:
    return None if search is None else Examination(search, check)


def merge(shards: Shards, request: Request) -> Reply:
    """The page of a light request ends when its CPU time is used up."""
    body = unpack(request.body, log.ScanBody)
    in_time = partial(require_time, request)
    search = _examination(body.search, in_time)
    pages = [
        reading.merge(shard.logs, body.range, body.prefix, body.limit, in_time, search, processor=request.processor)
        for shard in shards.values()
    ]
    return _page_reply(body, merge_pages(pages, body.limit), search)


def _page_reply(body: log.ScanBody, page: Page, search: Examination | None = None) -> Reply:
    check_progress(page, body.range.start, body.range.end, body.reverse)
    left_out = sorted(search.left_out) if search else ()
    return Reply(pack(log.ScanReply(page.next, page.done)), page.records.frames(), warnings=left_out)


def keys(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.KeysBody)
    is_allowed = partial(check, request)
    distinct_keys: set[bytes] = set()
    for shard in shards.values():
        distinct_keys.update(key_lists.keys(shard.logs, body.range, body.prefix, body.after, body.limit, is_allowed))
    return Reply(pack(log.KeysReply(sorted(distinct_keys)[: body.limit])))


def count(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.CountBody)
    is_allowed = partial(check, request)
    search = _examination(body.search, is_allowed)
    total = 0
    for shard in shards.values():
        if search is not None:
            total += reading.count_found(shard.logs, body.range, body.key, body.prefix, search, is_allowed)
        elif body.key is not None:
            total += reading.count_key(shard.logs, body.range, body.key, is_allowed)
        else:
            total += reading.count_prefix(shard.logs, body.range, body.prefix, is_allowed)
    return Reply(pack(log.CountReply(total)), warnings=sorted(search.left_out) if search else ())


def trim(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.TrimBody)
    (shard,) = shards.values()
    records = trimming.trim(shard.logs, body.range, body.key, body.closed, partial(check, request))
    return Reply(pack(log.TrimReply(records)))


def first_at(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.FirstAtBody)
    is_allowed = partial(check, request)
    first = min(times.first_at(shard.logs, body.segment, body.time_ms, is_allowed) for shard in shards.values())
    return Reply(pack(log.FirstAtReply(first)))


def apply_policies(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.PoliciesBody)
    (shard,) = shards.values()
    check(request)
    return Reply(pack(log.PoliciesReply(policies.run(shard.logs, body))))


def cursor_get(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.CursorBody)
    (shard,) = shards.values()
    return Reply(pack(log.CursorReply(cursors.read(shard.logs, body.name, body.key))))


def cursor_put(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.CursorBody)
    (shard,) = shards.values()
    cursors.move(shard.logs, body.name, body.moves, partial(check, request))
    return Reply()


def cursor_delete(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.CursorBody)
    (shard,) = shards.values()
    cursors.remove(shard.logs, body.name, partial(check, request))
    return Reply()


def producer(shards: Shards, request: Request) -> Reply:
    body = unpack(request.body, log.ProducerBody)
    (shard,) = shards.values()
    return Reply(pack(log.ProducerReply(shard.logs.producer_answers(body.producer))))


METHODS: dict[str, Method] = {
    "log.append": Method(append, "write"),
    "log.sync": Method(sync, "write"),
    "log.revoke": Method(revoke, "write"),
    "log.drop": Method(drop, "write"),
    "log.recover": Method(recover, "read"),
    "log.scan": Method(scan, "read"),
    "log.search": Method(search, "query"),
    "log.merge": Method(merge, "query"),
    "log.keys": Method(keys, "query"),
    "log.count": Method(count, "query"),
    "log.trim": Method(trim, "write"),
    "log.first_at": Method(first_at, "query"),
    "log.policies": Method(apply_policies, "query"),
    "log.cursor_get": Method(cursor_get, "read"),
    "log.cursor_put": Method(cursor_put, "write"),
    "log.cursor_delete": Method(cursor_delete, "write"),
    "log.producer": Method(producer, "read"),
}
