"""Consumer groups, whose members divide the keys of the log among them (docs/guide/log.md)."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import chain
from operator import itemgetter
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from aiohttp import web

from coordinator.api.listed import listed
from coordinator.api.log import answers, log_parameters
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.headers.negotiation import PROTOBUF, boolean, wants_protobuf
from coordinator.http.bodies import read_body
from coordinator.http.protocol import connection_of
from coordinator.http.responses import json_answer
from coordinator.log.follow import rows_of
from coordinator.log.groups.area import Groups, Polled
from coordinator.log.groups.assignment import ranges_of
from coordinator.log.groups.state import GroupState, Stale
from coordinator.log.reads import KeySelection, Warnings
from coordinator.parsing.body_errors import explained
from coordinator.queries.running import FOLLOW, TEXT_MAX, RunningQuery
from proto import log_pb2
from shared.errors import BadData
from shared.log.slots import slot_of
from shared.messages.log import KEY_BYTES_MAX, SEQUENCE_MAX

NAME_BYTES_MAX = 256
"""Bytes of the name of a group, and of a member."""
BODY_BYTES_MAX = 256 << 10
SESSION_MS_DEFAULT, SESSION_MS_MIN, SESSION_MS_MAX = 10_000, 1000, 300_000
RECORDS_DEFAULT, RECORDS_MAX = 1000, 50_000
KEYS_DEFAULT, KEYS_MAX = 100, 1000
NAMES_DEFAULT, NAMES_MAX = 100, 1000
ALL = KeySelection(None)

_Sequence = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX >> 1)]
_T = TypeVar("_T")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Join(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    member: str = ""
    prefix: bytes | None = None
    prefix_text: str | None = None
    session_timeout_ms: Annotated[int, msgspec.Meta(ge=SESSION_MS_MIN, le=SESSION_MS_MAX)] = SESSION_MS_DEFAULT
    start_from: str | _Sequence = "earliest"


class _OfMember(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    member: str
    generation: _Sequence


class _Commit(_OfMember, forbid_unknown_fields=True, rename="camel"):
    up_to: _Sequence


class _Poll(_OfMember, forbid_unknown_fields=True, rename="camel"):
    """`commit`: as `upTo` of a commit, which happens before the records are read."""

    after: _Sequence = 0
    commit: _Sequence | None = None
    max: Annotated[int, msgspec.Meta(ge=0, le=RECORDS_MAX)] = RECORDS_DEFAULT
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=SESSION_MS_MAX)] = 0


def _fenced(handler: Handler) -> Handler:
    """Answers a stale generation with 409, and with the generation to continue with, if there is one."""

    @wraps(handler)
    async def answered(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except Stale as error:
            request.app[CONTEXT].telemetry.refuse(error)
            body: dict[str, Any] = {"status": "error", "message": str(error)}
            if error.generation is not None:
                body["generation"] = error.generation
            return json_answer(body, error.status)

    return answered


@known_parameters()
@_fenced
async def join(request: web.Request) -> web.Response:
    """Take part in the group, which the first member creates. A member that is in the group already keeps its slots."""
    name, body = _name(request), await _body(request, _Join)
    if not body.member:
        body.member = f"member-{secrets.token_hex(8)}"
    _require_short(body.member, "`member`")
    prefix = _prefix(body)
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    start = _start(body.start_from, area.readable)
    state, place = await area.groups.join(name, body.member, prefix, start, body.session_timeout_ms)
    return json_answer(
        {
            "status": "success",
            **_member(state, place),
            "slotCount": len(state.owners),
            "ranges": ranges_of(state.owners, place),
            "prefix": base64.b64encode(state.prefix).decode(),
        }
    )


def _prefix(body: _Join) -> bytes | None:
    if body.prefix is not None and body.prefix_text is not None:
        raise BadData("`prefix` and `prefixText` exclude each other")
    prefix = body.prefix_text.encode() if body.prefix_text is not None else body.prefix
    if prefix is not None and len(prefix) > KEY_BYTES_MAX:
        raise BadData(f"`prefix` has {len(prefix)} bytes; it may have at most {KEY_BYTES_MAX}")
    return prefix


def _start(start_from: str | int, readable: int) -> int:
    if isinstance(start_from, int):
        return start_from
    if start_from not in ("earliest", "latest"):
        raise BadData(f"`startFrom` is {start_from!r}; it must be 'earliest', 'latest' or a sequence number")
    return readable if start_from == "latest" else 0


def _member(state: GroupState, place: int) -> dict[str, Any]:
    member = state.members[place]
    return {
        "member": member.name,
        "generation": member.generation,
        "sessionTimeoutMs": member.session_ms,
        "slots": int(np.count_nonzero(state.owners == place)),
        "committedSequence": state.lowest(place),
    }


@known_parameters("encoding")
@_fenced
async def poll(request: web.Request) -> web.Response:
    """Records of the member's keys from the committed position on, or from `after` on. Waits until there is one."""
    name, body = _name(request), await _body(request, _Poll)
    context = request.app[CONTEXT]
    groups, encoding = context.log.groups, answers.encoding(request.query)
    await context.log.wait_for_state()
    if body.commit is not None:
        await groups.commit(name, body.member, body.generation, body.commit)

    async def served(running: RunningQuery) -> web.Response:
        @contextmanager
        def parked() -> Iterator[None]:
            running.enter("following")
            with context.admission.following(connection_of(request).holder):
                yield
            running.enter("running")

        running.enter("running")
        wait_s = body.wait_ms / 1000
        polled = await groups.poll(name, body.member, body.generation, body.after, body.max, wait_s, parked)
        log_start = context.log.sequencer.log_start
        return _protobuf(polled, log_start) if wants_protobuf(request) else _json(polled, log_start, encoding)

    return await listed(request, FOLLOW if body.wait_ms else "log.poll", f"group={name}"[:TEXT_MAX], served)


def _json(polled: Polled, log_start: int, encoding: answers.Encoding) -> web.Response:
    page = polled.page
    rows = sorted(chain.from_iterable(rows_of(records, ALL) for records in page.pages), key=itemgetter(0))
    begin = b'{"status":"success","generation":%d,"records":[' % polled.generation
    end = answers.json_end(page.next, log_start, polled.warnings.texts())
    return web.Response(
        body=b"".join((begin, answers.json_records(rows, answers.Form(encoding)), end)), content_type="application/json"
    )


def _protobuf(polled: Polled, log_start: int) -> web.Response:
    head = log_pb2.ScanResponse(
        status="success",
        next_sequence=polled.page.next,
        log_start_sequence=log_start,
        warnings=polled.warnings.texts(),
    )
    pieces = chain.from_iterable(answers.protobuf_page(records) for records in polled.page.pages)
    return web.Response(body=b"".join((head.SerializeToString(), *pieces)), content_type=PROTOBUF)


@known_parameters()
@_fenced
async def commit(request: web.Request) -> web.Response:
    """Note that all of the member's records below `upTo` have been processed. On disk when this is answered."""
    name, body = _name(request), await _body(request, _Commit)
    area = request.app[CONTEXT].log
    await area.wait_for_state()
    committed = await area.groups.commit(name, body.member, body.generation, body.up_to)
    return json_answer({"status": "success", "generation": body.generation, "committedSequence": committed})


@known_parameters()
@_fenced
async def leave(request: web.Request) -> web.Response:
    """Leave the group. The member's slots go to the other members at once."""
    name, body = _name(request), await _body(request, _OfMember)
    await request.app[CONTEXT].log.groups.leave(name, body.member, body.generation)
    return json_answer({"status": "success"})


@known_parameters("after", "limit")
async def names(request: web.Request) -> web.Response:
    """Groups by name. If there are more, the next page begins `after` the last name."""
    after, limit = _page(request)
    rows, more = await request.app[CONTEXT].log.groups.store.names(after, limit)
    groups = [
        {"group": name, "members": members, "prefix": base64.b64encode(prefix).decode()}
        for name, members, prefix in rows
    ]
    return json_answer({"status": "success", "groups": groups, "more": more})


@known_parameters("after", "limit")
async def cursors(request: web.Request) -> web.Response:
    """Names of cursors. If there are more, the next page begins `after` the last name."""
    after, limit = _page(request)
    page, more = await request.app[CONTEXT].log.groups.store.cursor_names(after, limit)
    return json_answer({"status": "success", "cursors": [{"name": name} for name in page], "more": more})


def _page(request: web.Request) -> tuple[str, int]:
    limit = log_parameters.whole(request.query, ("limit",), NAMES_DEFAULT, 1, NAMES_MAX)
    after = request.query.get("after", "")
    _require_short(after, "parameter 'after'")
    return after, limit


@known_parameters("after", "after_base64", "limit", "lag", "encoding")
async def describe(request: web.Request) -> web.Response:
    """The members, and how many records are not committed: in total, and for each key."""
    name, query = _name(request), request.query
    limit = log_parameters.whole(query, ("limit",), KEYS_DEFAULT, 1, KEYS_MAX)
    after = log_parameters.octets(query, "after")
    with_lag = boolean(query, "lag", True)
    encoding, groups = answers.encoding(query), request.app[CONTEXT].log.groups

    async def served(running: RunningQuery) -> web.Response:
        running.enter("running")
        _, state = await groups.group(name)
        body: dict[str, Any] = {
            "status": "success",
            "group": name,
            "prefix": base64.b64encode(state.prefix).decode(),
            "generation": max((member.generation for member in state.members), default=0),
            "slotCount": len(state.owners),
            "members": [
                {**_member(state, place), "ranges": ranges_of(state.owners, place)}
                for place in range(len(state.members))
            ],
            "committedSequence": int(state.committed.min()),
        }
        if with_lag:
            body |= await _lag(groups, state, after, limit, encoding)
        return json_answer(body)

    return await listed(request, "log.group", f"group={name}"[:TEXT_MAX], served)


async def _lag(
    groups: Groups, state: GroupState, after: bytes | None, limit: int, encoding: answers.Encoding
) -> dict[str, Any]:
    """The number of records that are not committed: in total, and for each key of a page of keys."""
    warnings = Warnings()
    total = await groups.reader.count(state.prefix, state.committed, warnings)
    keys, more = await groups.reader.lag(state.prefix, state.committed, after, limit, warnings)
    shards = groups.shards
    rows = []
    for key, lag in keys:
        slot = slot_of(key, shards)
        owner = int(state.owners[slot])
        rows.append(
            {
                **answers.key_json(key, encoding),
                "lag": lag,
                "committedSequence": int(state.committed[slot]),
                "member": state.members[owner].name if owner >= 0 else None,
            }
        )
    lags: dict[str, Any] = {"lag": total, "keys": rows, "more": more}
    return {**lags, "warnings": warnings.texts()} if len(warnings) else lags


@known_parameters()
async def delete(request: web.Request) -> web.Response:
    await request.app[CONTEXT].log.groups.delete(_name(request))
    return json_answer({"status": "success"})


def _name(request: web.Request) -> str:
    name = request.match_info["group"]
    _require_short(name, "the group's name")
    return name


def _require_short(name: str, what: str) -> None:
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > NAME_BYTES_MAX:
        raise BadData(f"{what} has {size} bytes; it may have at most {NAME_BYTES_MAX}")


async def _body(request: web.Request, kind: type[_T]) -> _T:
    body = await read_body(request, BODY_BYTES_MAX)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not valid: {explained(error, kind)}") from error


_GROUP = "/api/v1/log/groups/{group}"
ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/log/groups", names, allow_head=False),
    web.get(_GROUP, describe, allow_head=False),
    web.delete(_GROUP, delete),
    web.post(f"{_GROUP}/join", join),
    web.post(f"{_GROUP}/poll", poll),
    web.post(f"{_GROUP}/commit", commit),
    web.post(f"{_GROUP}/leave", leave),
    web.get("/api/v1/log/cursors", cursors, allow_head=False),
]
