"""Inputs beside a given one, for targets whose branches the mutator cannot see."""

from __future__ import annotations

import random
from collections.abc import Iterator

COUNT = 8
CHANGES_MAX = 4
_LIKELY = b'\0\xff%&=?"{}[]():,;/ \r\n0123456789-.eE'


def beside(data: bytes) -> Iterator[bytes]:
    """The input with up to CHANGES_MAX bytes replaced, COUNT times; always the same ones for the same input."""
    chance = random.Random(data)
    for _ in range(COUNT if data else 0):
        changed = bytearray(data)
        for _ in range(chance.randint(1, CHANGES_MAX)):
            byte = chance.choice(_LIKELY) if chance.random() < 0.7 else chance.randrange(256)
            changed[chance.randrange(len(changed))] = byte
        yield bytes(changed)
