"""The log's records in the write-ahead log: groups, and revocations of batches.

A record begins with a head of 40 bytes: kind, segment, group, closed, settled, and the size of the msgpack part that
follows. For a group, this part has its batches on this shard, and the blocks (shared.log.blocks) follow it. For a
revocation, it has the revoked spans.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from shared.messages.log import Batch, Span
from shared.wire import Frame

_HEAD = struct.Struct("<IIQQQQ")
_GROUP, _REVOCATION = 1, 2
_BATCHES = msgspec.msgpack.Decoder(tuple[Batch, ...])
_SPANS = msgspec.msgpack.Decoder(list[Span])
_encode = msgspec.msgpack.encode


@dataclass(frozen=True, slots=True)
class Message:
    """A group's part on one shard. `batches`: those in which the shard takes part; `frame`: one block for each."""

    segment: int
    group: int
    closed: int
    settled: int
    batches: tuple[Batch, ...]
    frame: Frame

    def pieces(self) -> list[Frame]:
        batches = _encode(self.batches)
        head = _HEAD.pack(_GROUP, self.segment, self.group, self.closed, self.settled, len(batches))
        return [head + batches, self.frame]


@dataclass(frozen=True, slots=True)
class Revocation:
    """Spans of a group whose batches were revoked."""

    segment: int
    group: int
    spans: list[Span]

    def pieces(self) -> list[Frame]:
        spans = _encode(self.spans)
        return [_HEAD.pack(_REVOCATION, self.segment, self.group, 0, 0, len(spans)) + spans]


def read(payload: memoryview) -> Message | Revocation:
    """Decode a record: the inverse of `pieces`. Raises ValueError if it is of neither kind."""
    kind, segment, group, closed, settled, size = _HEAD.unpack_from(payload)
    content, rest = payload[_HEAD.size : _HEAD.size + size], payload[_HEAD.size + size :]
    if kind == _GROUP:
        return Message(segment, group, closed, settled, _BATCHES.decode(content), rest)
    if kind == _REVOCATION:
        return Revocation(segment, group, _SPANS.decode(content))
    raise ValueError(f"a record of the log has the unknown kind {kind}")
