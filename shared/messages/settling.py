"""Prepares the types of messages before several threads use them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

ROOMS = ("shared", "coordinator", "worker")


def settle() -> None:
    """Have msgspec prepare every message type imported so far.

    Otherwise msgspec prepares a type at its first use, and runs Python code meanwhile. A second thread that then uses
    the half-prepared type crashes the process.
    """
    for kind in _below(msgspec.Struct):
        if kind.__module__.partition(".")[0] in ROOMS:
            msgspec.json.Decoder(kind)


def _below(kind: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for child in kind.__subclasses__():
        yield child
        yield from _below(child)
