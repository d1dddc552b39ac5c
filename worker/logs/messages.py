"""The log's records in the write-ahead log: groups as they came, and what was taken back of them.

A record is a head of 40 bytes (kind, segment, group, closed, settled, and how many bytes the next part has) and, in
msgpack, the group's batches on this shard, with its blocks (shared.log_blocks) behind them, or the spans taken back.
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
    """A group's part on one shard; `batches` are those that the shard takes part in, `frame` has a block of each."""

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
    """Batches of a group that were taken back."""

    segment: int
    group: int
    spans: list[Span]

    def pieces(self) -> list[Frame]:
        spans = _encode(self.spans)
        return [_HEAD.pack(_REVOCATION, self.segment, self.group, 0, 0, len(spans)) + spans]


def read(payload: memoryview) -> Message | Revocation:
    """What `pieces` were of. Raises ValueError if it is neither."""
    kind, segment, group, closed, settled, size = _HEAD.unpack_from(payload)
    content, rest = payload[_HEAD.size : _HEAD.size + size], payload[_HEAD.size + size :]
    if kind == _GROUP:
        return Message(segment, group, closed, settled, _BATCHES.decode(content), rest)
    if kind == _REVOCATION:
        return Revocation(segment, group, _SPANS.decode(content))
    raise ValueError(f"a record of the log's has kind {kind}")
