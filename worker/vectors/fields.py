"""Selects the attributes that an answer contains."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def chosen(packed: bytes, fields: Sequence[str] | None) -> bytes:
    """The msgpack map `packed` with only the attributes in `fields` (None: all). Empty bytes if `packed` or `fields` is
    empty."""
    if fields is None or not packed:
        return packed
    if not fields:
        return b""
    attributes = msgspec.msgpack.decode(packed)
    return msgspec.msgpack.encode({name: attributes[name] for name in fields if name in attributes})
