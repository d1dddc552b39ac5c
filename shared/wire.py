"""Messages between the coordinator and its workers, as multipart frames.

A request has a RequestHeader, a body, frames common to its shards and frames for single shards; a reply has a
ReplyHeader, a body and frames (`proto/cluster.proto`). The body is the method's own message, a msgspec Struct of
`shared/messages/` in msgpack; the other frames are raw buffers (numpy arrays, protobuf slices), which this module does
not interpret.

Each ZeroMQ frame costs some microseconds, so small ones travel together: a message's first frame is
`[kind: 1 byte][request id: 8][bytes of the header: 4, little-endian][header]`, followed by every frame of at most
`INLINE_BYTES_MAX`, each aligned to 8 bytes. Larger frames follow unchanged as separate frames. The header's `sizes` has
the size of each frame, which determines its position.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

import msgspec
import xxhash
import zmq

from proto import cluster_pb2
from shared.measurements import Measurements
from shared.process.boot import boot_id
from shared.process.processor_time import UNBOUNDED, ProcessorTime

Frame = bytes | bytearray | memoryview

REQUEST = b"Q"
REPLY = b"R"
REGISTER = b"G"  # worker → coordinator, at the start and every heartbeat; no request id
GOODBYE = b"B"  # worker → coordinator: it stops and has sent its last reply; no request id
CANCEL = b"C"  # coordinator → worker: the reply to this request is no longer awaited
MEASURE = b"M"  # coordinator → worker: request for measurements; worker → coordinator: the measurements; no request id
PAUSE = b"P"  # coordinator → worker: postpone background work for a while; no request id
_ID_END = 9
_HEADER_AT = 13
_ALIGNMENT = 8
_PADDING = tuple(bytes(count) for count in range(_ALIGNMENT))

INLINE_BYTES_MAX = 16 << 10
"""A frame of at most this size travels in its message's first frame: copying it costs less than another frame."""
COPY_BYTES_MAX = 64 << 10
"""A frame of at most this size is copied when sent: that costs less than keeping the sender's buffer alive."""
# Plain integers: combining two of pyzmq's enum members costs a microsecond.
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)
_WRITABLE = int(zmq.POLLOUT)

FRAMES_MAX = 4096


def _clock() -> int:
    """Identifies the clock of `time.monotonic()`, which processes of the same boot and time namespace share. 0:
    unknown; the process then shares its clock with no other."""
    boot = boot_id()
    try:
        return xxhash.xxh64_intdigest(boot + os.readlink("/proc/self/ns/time").encode()) if boot else 0
    except OSError:
        return 0


CLOCK = _clock()

S = TypeVar("S")


@dataclass(slots=True)
class Request:
    """One call of a worker's method.

    `deadline` is on this process's `time.monotonic()` clock. On one host, the sender has the same clock, so a request
    that waited too long in a socket is past its deadline. `shards`: the shards of the call, all owned by the receiving
    worker. `body`: the method's msgpack message. `frames` are common to all shards, `parts` has frames for single
    shards. `processor_s`: the CPU time in seconds that a light request may use; 0: no bound. `processor`: that bound in
    the thread that runs the method. `samples_read`: the number of samples a query has read so far. `http_request`: the
    id of the HTTP request that causes the call, if any. `trace_parent`: the parent of the method's span in the form of
    W3C Trace Context, if a trace is recorded.
    """

    method: str
    shards: tuple[int, ...]
    deadline: float
    body: Frame = b""
    frames: Sequence[Frame] = ()
    parts: Mapping[int, Sequence[Frame]] = field(default_factory=dict)
    processor_s: float = 0.0
    processor: ProcessorTime = UNBOUNDED
    cancelled: bool = False
    http_request: str = ""
    trace_parent: str = ""
    samples_read: int = 0

    def count(self, samples: int) -> None:
        """Count samples that have been read."""
        self.samples_read += samples

    @property
    def time_left(self) -> float:
        """Seconds until the deadline, or 0."""
        return 0.0 if self.cancelled else max(0.0, self.deadline - time.monotonic())


@dataclass(slots=True)
class Reply:
    """A worker's reply. `shard_errors`: shard → why it could not take part. `warnings`: what is missing from the reply
    although its shards took part."""

    body: Frame = b""
    frames: Sequence[Frame] = ()
    shard_errors: Mapping[int, str] = field(default_factory=dict)
    timings_ms: Mapping[str, float] = field(default_factory=dict)
    error_class: str = ""
    error: str = ""
    warnings: Sequence[str] = ()


def encode_request(request_id: bytes, request: Request) -> list[Frame]:
    parts = request.parts
    assert len(parts) <= len(request.shards), "frames of shards that are not part of the call"
    frames = [request.body, *request.frames]
    for part_frames in parts.values():
        frames += part_frames
    sizes = [size_of(frame) for frame in frames]
    header = cluster_pb2.RequestHeader(
        method=request.method,
        timeout_ms=max(1, int(request.time_left * 1000)),
        shards=request.shards,
        body_frames=1 + len(request.frames),
        sizes=sizes,
        deadline_ns=max(0, int(request.deadline * 1e9)),
        clock=CLOCK,
        processor_us=int(request.processor_s * 1e6),
        http_request=request.http_request,
        trace_parent=request.trace_parent,
    )
    if parts:
        header.part_shards.extend(parts)
        header.part_frames.extend([len(part_frames) for part_frames in parts.values()])
    return _laid_out(REQUEST + request_id, header.SerializeToString(), frames, sizes)


def decode_request(message: Sequence[Frame]) -> tuple[bytes, Request]:
    """Inverse of `encode_request`: (request id, request). If sender and receiver share a clock, the deadline is at most
    the sender's; otherwise it is computed from the time that was left when the request was sent."""
    first, request_id, end = _start_of(message, REQUEST)
    header = cluster_pb2.RequestHeader.FromString(first[_HEADER_AT:end].tobytes())
    frames = _frames_of(first, message, end, header.sizes)
    at = header.body_frames
    assert at >= 1, "the body is a frame, possibly an empty one"
    parts = {}
    for shard, count in zip(header.part_shards, header.part_frames, strict=True):
        parts[shard] = frames[at : at + count]
        at += count
    assert at == len(frames), f"request {header.method} announces {at} frames and has {len(frames)}"
    deadline = time.monotonic() + header.timeout_ms / 1000
    if CLOCK and header.clock == CLOCK:
        deadline = min(deadline, header.deadline_ns / 1e9)
    request = Request(
        method=header.method,
        shards=tuple(header.shards),
        deadline=deadline,
        body=frames[0],
        frames=frames[1 : header.body_frames],
        parts=parts,
        processor_s=header.processor_us / 1e6,
        http_request=header.http_request,
        trace_parent=header.trace_parent,
    )
    return request_id, request


def encode_reply(request_id: bytes, reply: Reply) -> list[Frame]:
    frames = [reply.body, *reply.frames]
    sizes = [size_of(frame) for frame in frames]
    timings = reply.timings_ms
    header = cluster_pb2.ReplyHeader(sizes=sizes, timing_names=timings, timings_ms=timings.values())
    if reply.error_class:
        header.error_class, header.error = reply.error_class, reply.error
    for shard, reason in reply.shard_errors.items():
        header.shard_errors.add(shard=shard, reason=reason)
    if reply.warnings:
        header.warnings.extend(reply.warnings)
    return _laid_out(REPLY + request_id, header.SerializeToString(), frames, sizes)


def decode_reply(message: Sequence[Frame]) -> tuple[bytes, Reply]:
    first, request_id, end = _start_of(message, REPLY)
    header = cluster_pb2.ReplyHeader.FromString(first[_HEADER_AT:end].tobytes())
    frames = _frames_of(first, message, end, header.sizes)
    reply = Reply(
        body=frames[0],
        frames=frames[1:],
        timings_ms=dict(zip(header.timing_names, header.timings_ms, strict=True)),
        error_class=header.error_class,
        error=header.error,
    )
    if header.shard_errors:
        reply.shard_errors = {entry.shard: entry.reason for entry in header.shard_errors}
    if header.warnings:
        reply.warnings = tuple(header.warnings)
    return request_id, reply


def _laid_out(start: bytes, header: bytes, frames: Sequence[Frame], sizes: Sequence[int]) -> list[Frame]:
    """The message: its first frame, which contains all small frames, then the larger frames."""
    assert len(start) == _ID_END, f"a request id has {_ID_END - 1} bytes"
    assert 1 <= len(frames) <= FRAMES_MAX
    first: list[Frame] = [start, len(header).to_bytes(4, "little"), header, _PADDING[-(_HEADER_AT + len(header)) & 7]]
    large: list[Frame] = []
    for frame, size in zip(frames, sizes, strict=True):
        if size > INLINE_BYTES_MAX:
            large.append(frame)
        elif size:
            first.append(frame)
            first.append(_PADDING[-size & 7])
    return [b"".join(first), *large]


def _start_of(message: Sequence[Frame], kind: bytes) -> tuple[memoryview, bytes, int]:
    """(first frame, request id, end of the header) of a message of this kind. The frame is a writable and aligned copy:
    the buffers that ZeroMQ receives are writable but not aligned."""
    first = memoryview(bytearray(message[0]))
    prefix = first[:_HEADER_AT].tobytes()
    assert prefix[:1] == kind
    return first, prefix[1:_ID_END], _HEADER_AT + int.from_bytes(prefix[_ID_END:], "little")


def _frames_of(first: memoryview, message: Sequence[Frame], header_end: int, sizes: Sequence[int]) -> list[Frame]:
    """All frames of the message in order; `first` is its first frame, aligned."""
    at = header_end + (-header_end & 7)
    large_at = 1
    frames: list[Frame] = []
    for size in sizes:
        if size > INLINE_BYTES_MAX:
            frames.append(message[large_at])
            large_at += 1
        else:
            frames.append(first[at : at + size])
            at += size + (-size & 7)
    assert large_at == len(message), f"a message announces {large_at} parts and has {len(message)}"
    assert at == len(first), f"a first frame announces {at} bytes and has {len(first)}"
    return frames


def size_of(frame: Frame) -> int:
    """The frame's size in bytes; `len` of a memoryview counts only its first axis."""
    return len(frame) if type(frame) is bytes else memoryview(frame).nbytes


def send(socket: zmq.Socket[bytes], frames: Sequence[Frame]) -> None:
    """Send one message without waiting. Raises zmq.ZMQError (EAGAIN, EHOSTUNREACH) before any of it is sent."""
    last = len(frames) - 1
    for at, frame in enumerate(frames):
        socket.send(frame, _MORE if at < last else _LAST, copy=size_of(frame) <= COPY_BYTES_MAX)


def readable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message has arrived. The socket's descriptor is edge-triggered: it signals the next message only after
    a call of this function or of `send`."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _READABLE)


def writable(socket: zmq.Socket[bytes]) -> bool:
    """Whether a message could be sent now. As with `send`, messages that have arrived may no longer be signalled."""
    return bool(cast(int, socket.getsockopt(zmq.EVENTS)) & _WRITABLE)


def receive(socket: zmq.Socket[bytes]) -> list[Frame]:
    """One message without waiting. Raises zmq.Again when there is none."""
    frame = socket.recv(_LAST, copy=False)
    frames: list[Frame] = [frame.buffer]
    while frame.more:
        frame = socket.recv(_LAST, copy=False)
        frames.append(frame.buffer)
    return frames


def control_address(address: str) -> str:
    """The address for heartbeats and cancellations. `address`: for requests and replies, where they would wait for the
    large messages before them."""
    return address.removesuffix(".sock") + ".ctl.sock"


def encode_cancel(request_id: bytes) -> list[Frame]:
    return [CANCEL + request_id]


def encode_pause() -> list[Frame]:
    return [PAUSE]


def encode_measure() -> list[Frame]:
    return [MEASURE]


def encode_measurements(measurements: Measurements) -> list[Frame]:
    return [MEASURE + pack(measurements)]


def decode_measurements(frames: Sequence[Frame]) -> Measurements:
    return unpack(bytes(frames[0][1:]), Measurements)


def encode_register(message: cluster_pb2.Register) -> list[Frame]:
    return [REGISTER + message.SerializeToString()]


def decode_register(frames: Sequence[Frame]) -> cluster_pb2.Register:
    return cluster_pb2.Register.FromString(bytes(frames[0][1:]))


def encode_goodbye() -> list[Frame]:
    return [GOODBYE]


def kind_of(frames: Sequence[Frame]) -> bytes:
    return bytes(frames[0][:1])


def request_id_of(frames: Sequence[Frame]) -> bytes:
    return bytes(frames[0][1:_ID_END])


def pack(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def unpack(body: Frame, kind: type[S]) -> S:
    return msgspec.msgpack.decode(body, type=kind)
