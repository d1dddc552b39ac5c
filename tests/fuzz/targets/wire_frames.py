"""Messages between coordinator and workers. Their senders are processes of this service, so a wrong message may raise
any exception, which its receiver logs; it must not hang, end the process or take memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import msgspec
import numpy as np

from coordinator.series import remote_write
from loadtest.harness.memory_source import MemorySource
from proto import cluster_pb2
from shared import wire
from shared.frames import exemplars as exemplar_frames
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.histograms import references
from shared.labels import LabelFrame, Symbols
from shared.log import blocks as log_blocks
from shared.messages import exchange
from shared.messages.log_pages import Records
from shared.messages.sub_queries import EvaluateBody, Shape, SubQuery
from shared.promql.model import Matrix
from shared.wire import Reply, Request
from tests.fuzz.pieces import joined, split
from tests.fuzz.target import Target
from tests.fuzz.targets.remote_write import LIMITS, bodies
from tests.histogram_batches import batch_of
from tests.oracle_native_histograms import NativeHistogram
from worker.queries.evaluation import answer
from worker.series import exemplar_record, sample_record
from worker.series.exemplar_record import ExemplarRecord
from worker.series.sample_record import Written

ANY = (Exception,)
ID = b"12345678"


def _request(data: bytes) -> None:
    request_id, request = wire.decode_request(split(data))
    wire.encode_request(request_id, request)


def _reply(data: bytes) -> None:
    wire.encode_reply(*wire.decode_reply(split(data)))


def _register(data: bytes) -> None:
    wire.decode_register([wire.REGISTER + data])


def _samples(data: bytes) -> None:
    columns = sample_frames.parse(data)
    together = sample_record.joined([Written.of_columns(columns, np.arange(len(columns.counts)))] * 2)
    assert references.refer_into(together.values, 0 if together.histograms is None else len(together.histograms))


def _exemplars(data: bytes) -> None:
    columns = exemplar_frames.parse(data)
    exemplar_record.joined([ExemplarRecord.of_columns(columns, np.arange(len(columns.counts)))] * 2)


def _references(data: bytes) -> None:
    columns = reference_frames.parse(data)
    together = sample_record.joined([Written.of_columns(columns, columns.series)] * 2)
    assert len(together.rows()) == len(together.times_ms)
    assert references.refer_into(together.values, 0 if together.histograms is None else len(together.histograms))


def _value(data: bytes) -> None:
    head, *frames = split(data)
    value = exchange.decode(msgspec.msgpack.decode(head, type=Shape), frames, Symbols())
    if isinstance(value, Matrix):
        for row in range(min(value.labels.size, 16)):
            value.labels.labels(row)
        value.labels.sort_order()
        exchange.label_hashes(value.labels)


def _records(data: bytes) -> None:
    records = Records.from_frames(split(data))
    records.value_list()
    records.key_list()
    records.cut(1, 3).frames()


def _block(data: bytes) -> None:
    """What `measure` accepts can be indexed within its bounds."""
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64).copy()
    halves = words.view(np.uint32)
    blocks, records, size_bytes = log_blocks.measure(halves, 0, len(words))
    if blocks < 0:
        return
    assert records <= 4 * len(words) and size_bytes <= 8 * len(words)
    table = np.zeros((records, log_blocks.COLUMNS), np.int64)
    numbers, hashes = np.zeros(records, np.uint64), np.zeros(records, np.uint64)
    starts, batch_times, times = np.zeros(blocks, np.uint64), np.zeros(blocks, np.int64), np.zeros(records, np.int64)
    log_blocks.index(words, halves, 0, len(words), starts, batch_times, table, numbers, hashes, times, 0)
    ends = table[:, [log_blocks.KEY, log_blocks.VALUE]] + table[:, [log_blocks.KEY_LENGTH, log_blocks.VALUE_LENGTH]]
    assert (ends <= len(words) * 8).all(), "a record reaches past the end"


_SOURCE = MemorySource.of({'up{job="a"}': ([0, 15_000], [1.0, 2.0]), 'up{job="b"}': ([0], [3.0])})


def _evaluate(data: bytes) -> None:
    answer(
        msgspec.msgpack.decode(data, type=EvaluateBody),
        _SOURCE,
        Symbols(),
        deadline=time.monotonic() + 1,
        cancelled=lambda: False,
    )


# Inputs


def _requests() -> Iterator[bytes]:
    deadline = time.monotonic() + 5
    yield joined(wire.encode_request(ID, Request("series.write", (0, 1), deadline, b"body", [b"x" * 9], {1: [b"yz"]})))
    yield joined(wire.encode_request(ID, Request("log.scan", (3,), deadline, b"b" * 5000, [b"", b"z" * 4097])))


def _replies() -> Iterator[bytes]:
    yield joined(wire.encode_reply(ID, Reply(b"body", [b"frame"], {1: "down"}, {"scan": 0.5}, warnings=["partial"])))
    yield joined(wire.encode_reply(ID, Reply(error_class="BadData", error="no")))


def _registrations() -> Iterator[bytes]:
    state = cluster_pb2.ShardState(shard=1, detail="loading", counts={"series": 3})
    yield cluster_pb2.Register(pid=5, worker="worker-0", cluster_id="c", shards=[state]).SerializeToString()


def _values() -> Iterator[bytes]:
    symbols = Symbols()
    labels = LabelFrame.of([{"__name__": "up", "job": "a"}, {"__name__": "up", "job": "b"}], symbols)
    present = np.array([[True, False, True], [True, True, True]])
    matrix = Matrix(labels, np.arange(6.0).reshape(2, 3), present, np.zeros(2, np.bool_))
    batch = batch_of([NativeHistogram(schema=0, positive={1: 3.0, 4: 1.0}, count=4.0, sum=7.5)] * 6)
    of_histograms = replace(matrix, values=references.references(np.arange(6).reshape(2, 3)), histograms=batch)
    for value in (matrix, of_histograms):
        shape, frames = exchange.encode(value)
        yield joined([msgspec.msgpack.encode(shape), *frames])


def _frames_of_records() -> Iterator[bytes]:
    yield joined(Records.of(np.array([1, 2, 5], np.uint64), [b"a", b"", b"ccc"], [b"k", b"l", b"k"]).frames())


def _blocks() -> Iterator[bytes]:
    one = log_blocks.block_of([(1, 0, b"key", b"value"), (2, 3, b"", b"")])
    yield one
    yield one + log_blocks.EMPTY + one


def _evaluations() -> Iterator[bytes]:
    query = SubQuery("rate(up[1m])", "value", 0, 60_000, 15_000)
    yield msgspec.msgpack.encode(EvaluateBody(0, 60_000, 15_000, 300_000, 1000, (query,)))


def _sample_frames() -> Iterator[bytes]:
    for body in bodies():
        for frames in remote_write.split(body, 1, LIMITS).parts.values():
            yield from (bytes(frame) for frame in frames if not exemplar_frames.is_exemplars(frame))


def _reference_frames() -> Iterator[bytes]:
    for starts in ((), (7, 9, 0)):
        words = [reference_frames.MARK, 5, 2, 3, len(starts), 1 | 1 << 32, 4 | 2 << 32, 10, 10, 20, 0, 0, 0, *starts]
        yield np.array(words, dtype=np.int64).tobytes()
    for body in bodies():  # the same with histograms
        for frame in (frame for frames in remote_write.split(body, 1, LIMITS).parts.values() for frame in frames):
            columns = None if exemplar_frames.is_exemplars(frame) else sample_frames.parse(frame)
            if columns is not None and columns.histograms is not None:
                packed = b"".join(columns.histograms.bytes())
                runs = (np.arange(len(columns.counts)) | columns.counts << reference_frames.COUNT_SHIFT).tolist()
                head = [reference_frames.HISTOGRAMS_MARK, 5, len(runs), len(columns.values), 0, len(packed) // 8, *runs]
                arrays = (np.array(head, dtype=np.int64), columns.times_ms, columns.values)
                yield b"".join((*(array.tobytes() for array in arrays), packed))


def _exemplar_frames() -> Iterator[bytes]:
    for body in bodies():
        for frames in remote_write.split(body, 1, LIMITS).parts.values():
            yield from (bytes(frame) for frame in frames if exemplar_frames.is_exemplars(frame))


TARGETS = [
    Target("wire-request", _request, _requests, refusals=ANY),
    Target("wire-reply", _reply, _replies, refusals=ANY),
    Target("wire-register", _register, _registrations, refusals=ANY),
    Target("wire-samples", _samples, _sample_frames, refusals=ANY),
    Target("wire-references", _references, _reference_frames, refusals=ANY),
    Target("wire-exemplars", _exemplars, _exemplar_frames, refusals=ANY),
    Target("wire-value", _value, _values, refusals=ANY),
    Target("wire-records", _records, _frames_of_records, refusals=ANY),
    Target("wire-log-block", _block, _blocks, refusals=()),
    Target("wire-evaluate", _evaluate, _evaluations, refusals=ANY),
]
