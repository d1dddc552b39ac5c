"""Working out the types of messages before threads use them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

ROOMS = ("shared", "coordinator", "worker")


def settle() -> None:
    """Have msgspec look at every message type imported so far.

    It does so at a type's first use otherwise, running Python in the midst of it, and a second thread that uses the
    type just then finds it half made, which ends the process.
    """
    for kind in _below(msgspec.Struct):
        if kind.__module__.partition(".")[0] in ROOMS:
            msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
