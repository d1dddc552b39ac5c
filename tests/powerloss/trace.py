"""The recorder's trace: what a process did to the files under one directory, in order (see recorder.c)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import msgspec

_HEAD = struct.Struct("<IiQII")
_SIZE = struct.Struct("<Q")


class Op(IntEnum):
    MARK = 1
    OPEN = 2
    CLOSE = 3
    WRITE = 4
    ZEROS = 5
    TRUNCATE = 6
    SYNC_BEGIN = 7
    SYNC_END = 8
    RENAME = 9
    LINK = 10
    UNLINK = 11
    MKDIR = 12
    RMDIR = 13
    UNSEEN = 14


@dataclass(frozen=True, slots=True)
class Event:
    """`number` is a descriptor; `offset` is that in the file, the new size, the flags of an open or a sync's number;
    `path` and `target` are absolute; `data` is what was written, or a mark."""

    op: Op
    number: int
    offset: int
    first: bytes
    second: bytes

    @property
    def path(self) -> str:
        return self.first.decode()

    @property
    def target(self) -> str:
        return self.second.decode()

    @property
    def data(self) -> bytes:
        return bytes(_SIZE.unpack(self.first)[0]) if self.op is Op.ZEROS else self.first

    def describe(self, root: str) -> str:
        if self.op is Op.MARK:
            return f"MARK {msgspec.msgpack.decode(self.first)}"
        if self.op in (Op.WRITE, Op.ZEROS):
            return f"{self.op.name} descriptor {self.number} at {self.offset}, {len(self.data)} bytes"
        if self.op in (Op.CLOSE, Op.SYNC_BEGIN, Op.SYNC_END, Op.TRUNCATE):
            return f"{self.op.name} descriptor {self.number} ({self.offset})"
        paths = " → ".join(text.removeprefix(root) for text in (self.path, self.target) if text)
        return f"{self.op.name} {paths} ({self.number})"


def read(path: Path) -> list[Event]:
    """Raises ValueError for a trace that does not have everything."""
    return list(_events(path.read_bytes()))


def _events(data: bytes) -> Iterator[Event]:
    at = 0
    while at < len(data):
        op, number, offset, first, second = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        entry = Event(Op(op), number, offset, data[at : at + first], data[at + first : at + first + second])
        at += first + second
        if entry.op is Op.UNSEEN:
            raise ValueError(f"the recorded program wrote by {entry.path}, which the recorder does not follow")
        yield entry


@dataclass(frozen=True, slots=True)
class Mark:
    """`what` is "begin" or "done" of the act `number`, or "settled": everything before is on the disk by now. `told`
    is what the workload wants to know of it."""

    what: str
    number: int
    told: Any


def mark_of(entry: Event) -> Mark:
    return Mark(*msgspec.msgpack.decode(entry.first))
