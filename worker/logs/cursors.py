"""Cursors: a named consumer's position in the log of each key.

Durability: when `move` returns, the new positions survive the loss of power.
"""

from __future__ import annotations

from collections.abc import Callable

from shared.errors import Conflict
from shared.messages.log import CursorMove
from worker.logs import rows
from worker.logs.part import LogPart

POSITIONS_MAX = 10_000
"""Positions of one cursor in one answer. A consumer of more keys reads its positions key by key."""


def read(part: LogPart, name: str, key: bytes | None) -> list[tuple[bytes, int]]:
    """(key, sequence) of the cursor: of `key`, or if it is None of all keys, ascending, at most POSITIONS_MAX."""
    head = rows.cursor(name, b"")
    if key is not None:
        value = part.store.get("meta", head + key)
        return [] if value is None else [(key, int.from_bytes(value, "big"))]
    positions = []
    for row, value in part.store.scan("meta", head, rows.after(head)):
        positions.append((row[len(head) :], int.from_bytes(value, "big")))
        if len(positions) == POSITIONS_MAX:
            break
    return positions


def move(part: LogPart, name: str, moves: list[CursorMove], check: Callable[[], None]) -> None:
    """Set all positions, or none: raises Conflict when one is not as expected. `check` raises when the request's time
    is up."""
    changes = part.store.batch()
    with part.lock:
        check()
        for each in moves:
            row = rows.cursor(name, each.key)
            value = part.store.get("meta", row)
            now = -1 if value is None else int.from_bytes(value, "big")
            if each.expected is not None and each.expected != now:
                raise Conflict(
                    f"cursor {name!r} of key {each.key!r} is {_text(now)}, expected was {_text(each.expected)}"
                )
            changes.put("meta", row, rows.sequence_bytes(each.sequence))
        part.store.write(changes)
    part.store.sync()


def remove(part: LogPart, name: str, check: Callable[[], None]) -> None:
    head = rows.cursor(name, b"")
    changes = part.store.batch()
    changes.delete_range("meta", head, rows.after(head))
    with part.lock:
        check()
        part.store.write(changes)
    part.store.sync()


def names(part: LogPart, after: str, limit: int) -> list[str]:
    """Names of cursors greater than `after`, ascending by their bytes, at most `limit`."""
    page: list[str] = []
    at, end = (rows.after(rows.cursor(after, b"")) if after else rows.CURSORS), rows.after(rows.CURSORS)
    while len(page) < limit and (row := next(part.store.keys("meta", at, end), None)) is not None:
        page.append(rows.cursor_name(row))
        at = rows.after(rows.cursor(page[-1], b""))
    return page


def _text(position: int) -> str:
    return "not set" if position < 0 else f"at {position}"
