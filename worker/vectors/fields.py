"""Choosing the attributes an answer shows."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


def chosen(packed: bytes, fields: Sequence[str] | None) -> bytes:
    """A msgpack map of attributes with only `fields` of it; None: all."""
    if fields is None or not packed:
        return packed
    if not fields:
        return b""
    attributes = msgspec.msgpack.decode(packed)
    return msgspec.msgpack.encode({name: attributes[name] for name in fields if name in attributes})
