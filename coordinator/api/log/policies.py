"""Policies of the log, which say which records of the keys with a prefix are kept."""

from __future__ import annotations

import base64
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web

from coordinator.api.strict import known_parameters
from coordinator.context import CONTEXT
from coordinator.http.bodies import read_body
from coordinator.http.responses import json_answer
from coordinator.log.policies import KEEP_MAX
from coordinator.log.policy_document import TOMBSTONE_AGE_MS, Policy
from coordinator.parsing.body_errors import explained
from shared.durations import format_duration, parse_duration_ms
from shared.errors import BadData
from shared.messages.log import KEY_BYTES_MAX

BODY_BYTES_MAX = 128 << 10
AGE_MS_MAX = 100 * 365 * 86_400_000


class _Put(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    """Exactly one of `prefix`, as text, and `prefix_base64`, as bytes. `max_age` and `delete_tombstones_after` are
    durations such as 7d."""

    keep_newest: int | None = None
    max_age: str | None = None
    delete_tombstones_after: str | None = None
    prefix: str | None = None
    prefix_base64: bytes | None = None


_decoder = msgspec.json.Decoder(_Put)


@known_parameters()
async def listing(request: web.Request) -> web.Response:
    policies = request.app[CONTEXT].log.policies.all()
    return json_answer({"status": "success", "policies": [_shown(policy) for policy in policies]})


@known_parameters()
async def get(request: web.Request) -> web.Response:
    policy = request.app[CONTEXT].log.policies.get(request.match_info["name"])
    return json_answer({"status": "success", **_shown(policy)})


@known_parameters()
async def put(request: web.Request) -> web.Response:
    """Set a policy. Answered when it is on disk; it is applied in the background."""
    policy = _policy(request.match_info["name"], await read_body(request, BODY_BYTES_MAX))
    await request.app[CONTEXT].log.policies.put(policy)
    return json_answer({"status": "success", **_shown(policy)})


def _policy(name: str, body: bytes) -> Policy:
    try:
        parsed = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not a valid policy: {explained(error, _Put)}") from error
    if (parsed.prefix is None) == (parsed.prefix_base64 is None):
        raise BadData(
            "a policy must have either `prefix` (text) or `prefixBase64`; the empty prefix is that of all keys"
        )
    prefix = parsed.prefix_base64 if parsed.prefix is None else parsed.prefix.encode()
    assert prefix is not None
    if len(prefix) > KEY_BYTES_MAX:
        raise BadData(f"`prefix` has {len(prefix)} bytes; it may have at most {KEY_BYTES_MAX}")
    if parsed.delete_tombstones_after is not None and parsed.keep_newest is None:
        raise BadData("`deleteTombstonesAfter` needs `keepNewest`: other policies have no rule for tombstones")
    return Policy(
        name,
        prefix,
        keep_newest=_keep_newest(parsed.keep_newest),
        max_age_ms=_age_ms("maxAge", parsed.max_age, 1, 0),
        tombstone_age_ms=_age_ms("deleteTombstonesAfter", parsed.delete_tombstones_after, 0, TOMBSTONE_AGE_MS),
    )


def _keep_newest(value: int | None) -> int:
    if value is None:
        return 0
    if not 1 <= value <= KEEP_MAX:
        raise BadData(f"`keepNewest` is {value}; it must be 1 to {KEEP_MAX}")
    return value


def _age_ms(name: str, text: str | None, least: int, default: int) -> int:
    if text is None:
        return default
    try:
        age_ms = parse_duration_ms(text)
    except ValueError as error:
        raise BadData(f"`{name}`: {error}") from error
    if not least <= age_ms <= AGE_MS_MAX:
        raise BadData(f"`{name}` is {text!r}; it must be {least}ms to {format_duration(AGE_MS_MAX)}")
    return age_ms


def _shown(policy: Policy) -> dict[str, Any]:
    shown: dict[str, Any] = {"name": policy.name, "prefixBase64": base64.b64encode(policy.prefix).decode()}
    with suppress(UnicodeDecodeError):  # a prefix that is no text is shown as base64 only
        shown["prefix"] = policy.prefix.decode()
    if policy.keep_newest:
        shown["keepNewest"] = policy.keep_newest
        if policy.tombstone_age_ms != TOMBSTONE_AGE_MS:
            shown["deleteTombstonesAfter"] = format_duration(policy.tombstone_age_ms)
    if policy.max_age_ms:
        shown["maxAge"] = format_duration(policy.max_age_ms)
    return shown


@known_parameters()
async def delete(request: web.Request) -> web.Response:
    await request.app[CONTEXT].log.policies.remove(request.match_info["name"])
    return json_answer({"status": "success"})


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/log/policies", listing, allow_head=False),
    web.get("/api/v1/log/policies/{name}", get, allow_head=False),
    web.put("/api/v1/log/policies/{name}", put),
    web.delete("/api/v1/log/policies/{name}", delete),
]
