"""Consumer groups of the log: members that divide the keys among them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from triptych.calls import JSON, PROTOBUF, Call, Closing, Reading, ServerResponse, as_json, target
from triptych.errors import Conflict, NotFound
from triptych.log import names_of
from triptych.records import Records, Text, by_sequence, octets, page_of
from triptych.remarks import announce

WAIT_S = 5.0
SESSION_S = 10.0


@dataclass(frozen=True)
class Member:
    """A member of a group, as a join returns it."""

    group: str
    name: str
    generation: int


def join(
    group: str,
    *,
    member: str = "",
    prefix: Text | None = None,
    session_timeout: float = SESSION_S,
    start_from: str | int = "earliest",
) -> Call[Member]:
    """Take part in a group. The first member creates it with its keys (`prefix`) and the place where it begins.
    `member`: a name by which a process gets its keys back after a restart; by default a unique one."""
    body: dict[str, Any] = {"sessionTimeoutMs": round(session_timeout * 1000), "startFrom": start_from}
    if member:
        body["member"] = member
    if prefix is not None:
        body["prefix"] = base64.b64encode(octets(prefix)).decode()

    def read(answer: ServerResponse) -> Member:
        content = answer.json()
        return Member(group, content["member"], content["generation"])

    return _post(group, "join", body, read, repeatable=bool(member))


def poll(
    member: Member, *, after: int = 0, commit: int | None = None, limit: int = 1000, wait: float = 0.0
) -> Call[Records]:
    """Records of the member's keys from the committed position on, or from `after` on; waits at most so many seconds
    for the first. `commit`: as `commit`, before the records are read. Raises Conflict if the member's keys have
    changed."""
    body: dict[str, Any] = {"after": after, "max": limit, "waitMs": round(wait * 1000)}
    if commit is not None:
        body["commit"] = commit
    return _post(
        member.group,
        "poll",
        {**_named(member), **body},
        _polled,
        wait_s=wait,
        accept=PROTOBUF,
    )


def _polled(answer: ServerResponse) -> Records:
    page = by_sequence(page_of(answer.body, None))
    announce(page.warnings)
    return page


def commit(member: Member, up_to: int) -> Call[None]:
    """Note that the member's records below `up_to` have been processed and need not be read again. On disk when this
    returns."""
    call = _post(member.group, "commit", {**_named(member), "upTo": up_to}, lambda answer: None)
    return replace(call, changes=True)


def leave(member: Member) -> Call[None]:
    """Leave the group. The member's keys go to the other members at once."""
    return _post(member.group, "leave", _named(member), lambda answer: None, repeatable=False)


def consume(
    group: str,
    *,
    prefix: Text | None = None,
    member: str = "",
    session_timeout: float = SESSION_S,
    start_from: str | int = "earliest",
    limit: int = 1000,
) -> Reading[Records]:
    """Pages of records of this member's keys, for as long as the caller takes them. A page is committed when the next
    one is asked for, so what was not processed comes again: at least once. A caller that takes longer than
    `session_timeout` for a page loses its keys to the others, and the page comes again there.

    When the caller leaves its loop, the last page is not committed, and the member leaves the group.
    """

    def joining(name: str) -> Call[Member]:
        return join(group, member=name, prefix=prefix, session_timeout=session_timeout, start_from=start_from)

    current: Member = yield joining(member)
    processed: int | None = None
    try:
        while True:
            try:
                page = yield poll(current, commit=processed, limit=limit, wait=min(WAIT_S, session_timeout / 2))
            except (Conflict, NotFound) as error:
                processed = None
                current = _renewed(current, error) or (yield joining(current.name))
                continue
            if len(page):
                yield [page]
            processed = page.next
    except Closing:
        yield leave(current)


def _renewed(member: Member, error: Exception) -> Member | None:
    """The member with the generation that the error names; None if it must join again."""
    generation = error.generation if isinstance(error, Conflict) else None
    return None if generation is None else Member(member.group, member.name, generation)


def describe(group: str, *, lag: bool = True) -> Call[Mapping[str, Any]]:
    """The group as the server describes it: members with their slots, the committed positions and, with `lag`, how many
    records are not committed."""
    return Call("GET", target(_path(group), [("lag", "true" if lag else "false")]), lambda answer: answer.json())


def groups() -> Reading[str]:
    """The names of groups, as they are read."""
    yield from names_of("/api/v1/log/groups", "groups", "group")


def delete_group(group: str) -> Call[None]:
    """Delete a group: its members are answered NotFound from then on."""
    return Call("DELETE", _path(group), lambda answer: None, repeatable=False)


def _named(member: Member) -> dict[str, Any]:
    return {"member": member.name, "generation": member.generation}


def _path(group: str, action: str = "") -> str:
    return f"/api/v1/log/groups/{quote(group, safe='')}{'/' if action else ''}{action}"


def _post(
    group: str,
    action: str,
    body: Mapping[str, Any],
    read: Any,
    *,
    repeatable: bool = True,
    wait_s: float = 0.0,
    accept: str = JSON,
) -> Call[Any]:
    headers = {"Content-Type": JSON, "Accept": accept}
    return Call("POST", _path(group, action), read, headers, as_json(body), repeatable=repeatable, wait_s=wait_s)
