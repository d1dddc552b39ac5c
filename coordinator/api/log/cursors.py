"""Cursors: the positions of a named consumer in the log of each key."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec
from aiohttp import web

from coordinator.api.log import answers, log_parameters
from coordinator.api.parameters import timestamp_ms
from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.fanout.calls import WorkerReply
from coordinator.http.bodies import read_body
from coordinator.http.responses import json_answer
from coordinator.log.reads import KeySelection, Warnings
from coordinator.parsing.body_errors import explained
from coordinator.parsing.large_bodies import SLICED_BYTES_MIN, LargeObject
from shared.errors import BadData
from shared.hashing import shard_of
from shared.messages.log import KEY_BYTES_MAX, SEQUENCE_MAX, CursorBody, CursorMove, CursorReply
from shared.wire import pack, unpack

NAME_BYTES_MAX = 256
MOVES_MAX = 10_000
BODY_BYTES_MAX = 8 << 20
TIMES_MAX = 100
"""Distinct times in one request, because each is looked up on every shard."""

_Sequence = Annotated[int, msgspec.Meta(ge=0, le=SEQUENCE_MAX >> 1)]


class _Position(msgspec.Struct, forbid_unknown_fields=True):
    """The position of `key`, or of `keyText` as plain text. `time` instead of `sequence`: RFC 3339 text or Unix
    seconds; the position is then that of the first record from this time on. `expected`: absent for any position; null
    for none yet."""

    sequence: _Sequence | msgspec.UnsetType = msgspec.UNSET
    time: str | int | float | msgspec.UnsetType = msgspec.UNSET
    key: bytes | msgspec.UnsetType = msgspec.UNSET
    keyText: str | msgspec.UnsetType = msgspec.UNSET
    expected: _Sequence | msgspec.UnsetType | None = msgspec.UNSET


class _Put(msgspec.Struct, forbid_unknown_fields=True):
    positions: list[_Position]


_decoder = msgspec.json.Decoder(_Put)
_list_decoder = msgspec.json.Decoder(list[_Position])


@known_parameters("key", "key_base64", "encoding")
async def get(request: web.Request) -> web.Response:
    """All positions of the cursor, or that of one `key`."""
    key = log_parameters.octets(request.query, "key")
    encoding = answers.encoding(request.query)
    reply = await _ask(request, "log.cursor_get", CursorBody(_name(request), key=key))
    positions = unpack(reply.message.body, CursorReply).positions
    rows = [{**answers.key_json(key, encoding), "sequence": sequence} for key, sequence in positions]
    body: dict[str, Any] = {"status": "success", "positions": rows}
    if reply.message.warnings:
        body["warnings"] = list(reply.message.warnings)
    return json_answer(body)


@known_parameters()
async def put(request: web.Request) -> web.Response:
    """Set positions, all or none: 409 when one is not as `expected`. Answered when they are on the disk."""
    body = await read_body(request, BODY_BYTES_MAX)
    if len(body) < SLICED_BYTES_MIN:
        moves, times_ms = _moves(_positions(body))
    else:
        decodings = request.app[CONTEXT].decodings
        moves, times_ms = await decodings.run(len(body), lambda: _moves(_sliced_positions(body)))
    answer: dict[str, Any] = {"status": "success", "positionsSet": len(moves)}
    if times_ms:
        answer |= await _resolve(request, moves, times_ms)
    await _ask(request, "log.cursor_put", CursorBody(_name(request), moves))
    return json_answer(answer)


async def _resolve(request: web.Request, moves: list[CursorMove], times_ms: dict[int, int]) -> dict[str, Any]:
    """Fill in the sequence numbers of the moves that have a time. Returns what the answer says about them."""
    reader, warnings = request.app[CONTEXT].log.reader, Warnings()
    sequences = {
        time_ms: await reader.sequence_at(time_ms, KeySelection(None), warnings) for time_ms in times_ms.values()
    }
    for i, time_ms in times_ms.items():
        moves[i].sequence = sequences[time_ms]
    base64 = answers.Encoding.BASE64
    rows = [{**answers.key_json(moves[i].key, base64), "sequence": moves[i].sequence} for i in times_ms]
    return {"positions": rows, **({"warnings": warnings.texts()} if len(warnings) else {})}


def _positions(body: bytes) -> list[_Position]:
    return _decoded(lambda: _decoder.decode(body).positions, _Put)


def _sliced_positions(body: bytes) -> list[_Position]:
    """As `_positions`, for a large body."""
    large = LargeObject(body, {"positions": MOVES_MAX})
    _positions(large.rest)
    positions: list[_Position] = []
    if (slices := large.lists.get("positions")) is not None:
        _check_count(slices.count)
        slices.require_elements_within(2 * KEY_BYTES_MAX)
        for first, text in slices:
            positions += _decoded(partial(slices.decode, first, text, _list_decoder), _list_decoder.type)
    return positions


def _decoded(decode: Callable[[], list[_Position]], kind: Any) -> list[_Position]:
    try:
        return decode()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not a valid list of positions: {explained(error, kind)}") from error


def _check_count(count: int) -> None:
    if not 0 < count <= MOVES_MAX:
        raise BadData(f"`positions` holds {count} entries; it must hold 1 to {MOVES_MAX}")


def _moves(positions: list[_Position]) -> tuple[list[CursorMove], dict[int, int]]:
    """(the moves for the worker; position in the list → Unix ms, for the moves whose sequence number has to be looked
    up). Raises BadData."""
    _check_count(len(positions))
    moves = []
    times_ms: dict[int, int] = {}
    for i, position in enumerate(positions):
        key = _key(position, i)
        if len(key) > KEY_BYTES_MAX:
            raise BadData(f"`positions[{i}].key` has {len(key)} bytes; it may have at most {KEY_BYTES_MAX}")
        expected = position.expected
        expected_sequence = None if expected is msgspec.UNSET else -1 if expected is None else expected
        sequence = position.sequence
        if (sequence is msgspec.UNSET) == (position.time is msgspec.UNSET):
            raise BadData(f"`positions[{i}]` must have either `sequence` or `time`")
        if position.time is not msgspec.UNSET:
            times_ms[i] = timestamp_ms(str(position.time), f"positions[{i}].time")
            sequence = 0
        moves.append(CursorMove(key, sequence, expected_sequence))  # type: ignore[arg-type]
    if len(set(times_ms.values())) > TIMES_MAX:
        raise BadData(f"`positions` has {len(set(times_ms.values()))} distinct times; it may have at most {TIMES_MAX}")
    return moves, times_ms


def _key(position: _Position, i: int) -> bytes:
    key, text = position.key, position.keyText
    if isinstance(text, str) == isinstance(key, bytes):
        present = "both" if isinstance(text, str) else "neither"
        raise BadData(f"`positions[{i}]` has {present} of `key` (base64) and `keyText`; it must have one of them")
    return text.encode() if isinstance(text, str) else key  # type: ignore[return-value]


@known_parameters()
async def delete(request: web.Request) -> web.Response:
    await _ask(request, "log.cursor_delete", CursorBody(_name(request)))
    return json_answer({"status": "success"})


def _name(request: web.Request) -> str:
    name = request.match_info["name"]
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        raise BadData(f"the cursor's name has more than {NAME_BYTES_MAX} bytes")
    return name


async def _ask(request: web.Request, method: str, body: CursorBody) -> WorkerReply:
    context = request.app[CONTEXT]
    shard = shard_of(body.name.encode(), context.links.shards)
    timeout_s = context.settings.write_timeout_ms / 1000
    (reply,) = await context.links.call(method, shards=[shard], body=pack(body), timeout_s=timeout_s)
    return reply


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/log/cursors/{name}", get, allow_head=False),
    web.put("/api/v1/log/cursors/{name}", put),
    web.delete("/api/v1/log/cursors/{name}", delete),
]
