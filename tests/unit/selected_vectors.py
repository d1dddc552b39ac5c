"""Vectors of one shard, selected by filters, for tests."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from shared import wire
from shared.messages import selected_vectors as messages
from shared.messages.selected_vectors import KINDS, Position, kind_of
from shared.messages.vectors import Condition, unpack_blobs
from shared.wire import Reply
from tests.unit.vector_shard import COSINE, OneShard

VALUES: list[Any] = [
    True, False, 1, 0, -1, 2, 2.0, 2.5, -0.0, 1e300, -1e300, 2**53, 2**53 + 1, float(2**53), -(2**63), 2**63 - 1,
    9.3e18, "", "a", "b", "é", "😀", None, None,
]  # fmt: skip
RED = Condition("eq", "colour", ("red",))


def fill(shard: OneShard, rows: dict[str, dict[str, Any]]) -> None:
    vectors = np.random.default_rng(1).standard_normal((len(rows), 8)).astype(np.float32)
    shard.write(list(rows), vectors, [{k: v for k, v in row.items() if v is not None} for row in rows.values()])


def some_rows(count: int, seed: int = 3) -> dict[str, dict[str, Any]]:
    choice = random.Random(seed)
    names = [f"v{n}" for n in range(count)]
    choice.shuffle(names)
    return {name: {"colour": choice.choice(["red", "blue"]), "x": choice.choice(VALUES)} for name in names}


def page(shard: OneShard, limit: int, after: Position | None = None, **asked: Any) -> tuple[list[Position], Reply]:
    fields = {"filter": None, "order_field": "", "descending": False, "bytes_max": 1 << 30, "fields": (), **asked}
    reply = shard.call("vector.page", messages.PageBody(COSINE, limit=limit, after=after, **fields))
    names = unpack_blobs(*reply.frames[:2])
    body = wire.unpack(reply.body, messages.PageReply)
    values = body.values if fields["order_field"] else [None] * len(names)
    return [Position(value, name) for value, name in zip(values, names, strict=True)], reply


def scroll(shard: OneShard, limit: int, **asked: Any) -> list[Position]:
    """All pages of a scroll, one after the other."""
    found: list[Position] = []
    after = None
    while True:
        positions, reply = page(shard, limit, after, **asked)
        found += positions
        after = wire.unpack(reply.body, messages.PageReply).end
        if after is None:
            return found
        assert len(positions) == limit


def expected(rows: dict[str, dict[str, Any]], *, descending: bool) -> list[str]:
    kinds = [*reversed(KINDS[:3]), "none"] if descending else list(KINDS)
    names: list[str] = []
    for kind in kinds:
        own = sorted(name for name, row in rows.items() if kind_of(row["x"]) == kind)
        names += own if kind == "none" else sorted(own, key=lambda name: rows[name]["x"], reverse=descending)
    return names


def selected(shard: OneShard, method: str, **asked: Any) -> messages.SelectedReply:
    return wire.unpack(shard.call(method, messages.SelectionBody(COSINE, **asked)).body, messages.SelectedReply)
