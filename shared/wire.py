"""Messages between the coordinator and its workers, as multipart frames.

A request is `[kind, request id, RequestHeader][body frame][common frames…][part frames…]`, a reply
`[kind, request id, ReplyHeader][body frame][frames…]`. The first frame is a byte, 8 bytes and a protobuf message
(`proto/cluster.proto`), in one because each frame costs some microseconds. The body frame is the method's own message,
a msgspec Struct of `shared/messages/` in msgpack; the other frames are raw buffers (numpy arrays, protobuf slices)
that are neither copied nor looked into here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import zmq

from proto import cluster_pb2

Frame = bytes | bytearray | memoryview

REQUEST = b"Q"
REPLY = b"R"
REGISTER = b"G"  # worker → coordinator, at the start and every heartbeat; no request id
CANCEL = b"C"  # coordinator → worker: nobody waits for this request any more
_ID_END = 9

COPY_BYTES_MAX = 16 << 10
"""A frame up to here is copied into its message: cheaper than keeping the sender's buffer alive until it has gone."""
# Plain integers: pyzmq's enum members cost a microsecond each time two are combined.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
READABLE = int(zmq.POLLIN)

FRAMES_MAX = 4096

S = TypeVar("S")


@dataclass(slots=True)
class Request:
    """One call of a worker's method.

    `deadline` is on this process's `time.monotonic()` clock. `shards` are those the call is about, all owned by the
    receiving worker. `body` is the method's msgpack message, `frames` are common to all shards, `parts` are the frames
    meant for one shard.
    """

    method: str
    shards: tuple[int, ...]
    deadline: float
    body: Frame = b""
    frames: Sequence[Frame] = ()
    parts: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    cancelled: bool = False

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, or 0."""
        return 0.0 if self.cancelled else max(0.0, self.deadline - time.monotonic())


@dataclass(slots=True)
class Reply:
    """A worker's answer. `shard_errors` names the shards that could not take part, and why; `warnings` what the answer
    lacks of those that did."""

    body: Frame = b""
    frames: Sequence[Frame] = ()
    shard_errors: Mapping[int, str] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    error_class: str = ""
    error: str = ""
    warnings: Sequence[str] = ()


def encode_request(request_id: bytes, request: Request) -> list[Frame]:
    parts = [cluster_pb2.ShardFrames(shard=shard, frames=len(frames)) for shard, frames in request.parts.items()]
    header = cluster_pb2.RequestHeader(
        method=request.method,
        timeout_ms=max(1, int(request.time_left * 1000)),
        shards=request.shards,
        body_frames=1 + len(request.frames),
        parts=parts,
    )
    tail = [frame for frames in request.parts.values() for frame in frames]
    message = [REQUEST + request_id + header.SerializeToString(), request.body, *request.frames, *tail]
    assert len(message) <= FRAMES_MAX
    return message


def decode_request(frames: Sequence[Frame]) -> tuple[bytes, Request]:
    """Inverse of `encode_request`; the deadline is set from the time left when the request was sent."""
    request_id, content = _split(frames[0])
    header = cluster_pb2.RequestHeader.FromString(content)
    at = 1 + header.body_frames
    parts = {}
    for part in header.parts:
        parts[part.shard] = frames[at : at + part.frames]
        at += part.frames
    assert at == len(frames), f"request {header.method} announces {at} frames and has {len(frames)}"
    request = Request(
        method=header.method,
        shards=tuple(header.shards),
        deadline=time.monotonic() + header.timeout_ms / 1000,
        body=frames[1],
        frames=frames[2 : 1 + header.body_frames],
        parts=parts,
    )
    return request_id, request


def encode_reply(request_id: bytes, reply: Reply) -> list[Frame]:
    header = cluster_pb2.ReplyHeader(
        error_class=reply.error_class,
        error=reply.error,
        shard_errors=[cluster_pb2.ShardError(shard=s, reason=r) for s, r in reply.shard_errors.items()],
        timings_ms=dict(reply.timings_ms),
        warnings=reply.warnings,
    )
    message = [REPLY + request_id + header.SerializeToString(), reply.body, *reply.frames]
    assert len(message) <= FRAMES_MAX
    return message


def decode_reply(frames: Sequence[Frame]) -> tuple[bytes, Reply]:
    request_id, content = _split(frames[0])
    header = cluster_pb2.ReplyHeader.FromString(content)
    reply = Reply(
        body=frames[1],
        frames=frames[2:],
        shard_errors={e.shard: e.reason for e in header.shard_errors},
        timings_ms=dict(header.timings_ms),
        warnings=tuple(header.warnings),
        error_class=header.error_class,
        error=header.error,
    )
    return request_id, reply


def send(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> None:
    """Send one message without waiting. Raises zmq.ZMQError (EAGAIN, EHOSTUNREACH) before any of it has gone."""
    last = len(frames) - 1
    for at, frame in enumerate(frames):
        copy = memoryview(frame).nbytes <= COPY_BYTES_MAX
        socket.send(frame, _MORE if at < last else _LAST, copy=copy)


def encode_cancel(request_id: bytes) -> list[Frame]:
    return [CANCEL + request_id]


def encode_register(message: cluster_pb2.Register) -> list[Frame]:
    return [REGISTER + message.SerializeToString()]


def decode_register(frames: Sequence[Frame]) -> cluster_pb2.Register:
    return cluster_pb2.Register.FromString(bytes(frames[0][1:]))


def kind_of(frames: Sequence[Frame]) -> bytes:
    return bytes(frames[0][:1])


def request_id_of(frames: Sequence[Frame]) -> bytes:
    return bytes(frames[0][1:_ID_END])


def _split(first: Frame) -> tuple[bytes, bytes]:
    """(request id, protobuf) of a message's first frame."""
    content = bytes(first)
    return content[1:_ID_END], content[_ID_END:]


def pack(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack(body: Frame, kind: type[S]) -> S:
    return msgspec.msgpack.decode(body, type=kind)
