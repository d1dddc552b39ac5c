"""Parses append requests of three content types into checked columns of keys and values.

The kernels of `coordinator.log.walk` read the requests that ordinary clients send. General readers read small bodies
and everything that the kernels cannot read, large bodies in slices (`coordinator.parsing.large_bodies`). So only the
general readers decide what is an error and word its message.

JSON is as the interface describes it; ProtoJSON also accepts what its own rules allow (snake_case names, null,
base64url, unpadded base64, integers as text). Field names in errors are paths into the body, such as
`$.records[3].key`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.headers.negotiation import JSON, PROTOBUF, PROTOBUF_JSON
from coordinator.log import walk
from coordinator.log.columns import BatchRecords, FewRecords, ManyRecords, columns_of
from coordinator.log.headers import BYTES_MAX, packed
from coordinator.log.record_forms import ProtoRecord, Record, RecordColumns, columns, plain, proto_columns
from coordinator.parsing.body_errors import explained
from coordinator.parsing.large_bodies import SLICED_BYTES_MIN, LargeMessage, LargeObject, Slices
from proto import log_pb2
from shared.errors import BadData, TooLarge
from shared.messages.log import KEY_BYTES_MAX
from shared.settings import Settings
from shared.wire import Frame

PRODUCER_BYTES_MAX = 256
PRODUCER_SEQ_MAX = (1 << 63) - 1
PRODUCER_SEQ_DIGITS = len(str(PRODUCER_SEQ_MAX))

WALK_BYTES_MIN = 2048
"""Bodies shorter than this are read faster by the general readers."""
BESIDE_BYTES_MAX = 2048
"""Bytes of a body beside its records (the producer's id and a few names) up to which the kernels' readers accept it."""
_RECORD_BYTES_MIN = 21  # a record in JSON with its comma, an empty key and an empty text
_PROTO_RECORD_BYTES_MIN = 4
_SPANS_MAX = 16
ENCODED_BESIDE_BYTES_MAX = 4096
"""Bytes of one record in a body beside its key and its value: names, white space, unknown fields."""
ENCODED_HEADERS_BYTES_MAX = 6 * BYTES_MAX
"""Bytes of one record's headers in a body: a character may be written as `\\u0000`."""

T = TypeVar("T")


@dataclass(slots=True)
class Append:
    """One batch. `producer` is "" for an append that is not idempotent."""

    records: BatchRecords
    durable: bool
    producer: str
    producer_seq: int
    _blocks: dict[int, Frame] | None = None
    count: int = field(init=False)

    def __post_init__(self) -> None:
        self.count = len(self.records)

    def cut(self, shards: int) -> Append:
        """Cut the records by shard ahead of `take_blocks`, in the thread that has read them. Returns this batch."""
        self._blocks = self.records.blocks(shards)
        return self

    def take_blocks(self, shards: int) -> dict[int, Frame]:
        """Shard → its records, as `Columns.blocks`. The caller owns them: the batch does not keep a copy."""
        blocks, self._blocks = self._blocks, None
        return self.records.blocks(shards) if blocks is None else blocks

    @property
    def size_bytes(self) -> int:
        return self.records.size_bytes


@dataclass(slots=True)
class _Lists:
    """A batch as the general readers return it. `headers`: see RecordColumns."""

    keys: list[bytes]
    values: list[bytes]
    headers: dict[int, bytes]
    durable: bool
    producer: str
    producer_seq: int


class _Append(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    records: list[Record]
    await_durable: bool = False
    producer_id: str = ""
    producer_seq: Annotated[int, msgspec.Meta(ge=0, le=PRODUCER_SEQ_MAX)] | None = None


class _ProtoAppend(msgspec.Struct, forbid_unknown_fields=True):
    records: list[ProtoRecord] | None = None
    await_durable: bool | None = None
    await_durable_: bool | None = msgspec.field(name="awaitDurable", default=None)
    producer_id: str | None = None
    producer_id_: str | None = msgspec.field(name="producerId", default=None)
    producer_seq: int | str | None = None
    producer_seq_: int | str | None = msgspec.field(name="producerSeq", default=None)


_json = msgspec.json.Decoder(_Append)
_proto_json = msgspec.json.Decoder(_ProtoAppend)
_json_records = msgspec.json.Decoder(list[Record])
_proto_json_records = msgspec.json.Decoder(list[ProtoRecord])


def parse(content_type: str, body: bytes, settings: Settings) -> Append:
    """The batch in `body`. Raises BadData naming the field that is wrong, TooLarge for a batch over its limit."""
    reader = _READERS.get(content_type)
    if reader is None:
        raise BadData(f"Content-Type is {content_type!r}; it must be one of {', '.join(_READERS)}")
    if (batch := walked(content_type, body, settings)) is not None:
        return batch
    lists = reader(body) if len(body) < SLICED_BYTES_MIN else _SLICED_READERS[content_type](body, settings)
    _check(lists, settings)
    batch_records = columns_of(lists.keys, lists.values, lists.headers)
    return Append(batch_records, lists.durable, lists.producer, lists.producer_seq)


def one_plain(body: bytes, settings: Settings) -> Append | None:
    """As `parse`, for JSON with one record that has a key and a value and nothing else, of no producer, at half the
    cost; None for any other body."""
    if len(body) >= WALK_BYTES_MIN or body.count(b"{") != 2:
        return None
    try:
        parsed = _json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if len(parsed.records) != 1 or parsed.producer_id or parsed.producer_seq is not None:
        return None
    key, value = plain(parsed.records[0])
    if key is None or value is None or len(key) > KEY_BYTES_MAX:
        return None
    if len(key) + len(value) > min(settings.log_record_bytes_max, settings.log_batch_bytes_max):
        return None
    return Append(FewRecords([key], [value]), parsed.await_durable, "", 0)


def walked(content_type: str, body: bytes, settings: Settings) -> Append | None:
    """As `parse`, if the kernels can read the body; None for one that they leave to the general readers."""
    walk_body = _WALKS.get(content_type)
    return walk_body(body, settings) if walk_body is not None and len(body) >= WALK_BYTES_MIN else None


# The kernels' readers: None for bodies that they leave to the general readers.


def _walked_json(body: bytes, settings: Settings) -> Append | None:
    """Read the array of records with the kernel, and the rest of the body as a request without records."""
    begin = body.find(b"[", 0, BESIDE_BYTES_MAX) + 1
    name = body[:begin].rstrip(b"[ \t\r\n:")
    if begin == 0 or not name.endswith(b'"records"'):
        return None
    octets = np.frombuffer(body, np.uint8)
    out = np.empty(len(body), np.uint8)
    table = np.empty((min(len(body) // _RECORD_BYTES_MIN + 1, settings.log_records_max), 4), np.int64)
    count, end = walk.walk_json(octets, begin, out, table)
    if count < 0 or len(body) - end > BESIDE_BYTES_MAX:
        return None
    beside = body[:begin] + body[end:]
    if b"\\" in beside or beside.count(b'"records"') != 1:
        return None
    try:
        parsed = _json.decode(beside)
        seq = _producer_seq(parsed.producer_id, parsed.producer_seq)
    except (msgspec.MsgspecError, UnicodeDecodeError, BadData):
        return None
    return _fitting(out, table[:count], settings, parsed.await_durable, parsed.producer_id, seq)


def _walked_protobuf(body: bytes, settings: Settings) -> Append | None:
    octets = np.frombuffer(body, np.uint8)
    table = np.empty((min(len(body) // _PROTO_RECORD_BYTES_MIN + 1, settings.log_records_max), 4), np.int64)
    other_spans = np.empty((_SPANS_MAX, 2), np.int64)
    count, spans = walk.walk_protobuf(octets, table, other_spans)
    if count <= 0:
        return None
    try:
        parsed = log_pb2.AppendRequest.FromString(b"".join(body[a:b] for a, b in other_spans[:spans].tolist()))
        seq = _producer_seq(parsed.producer_id, _integer(parsed.producer_seq) if parsed.producer_id else None)
    except (DecodeError, BadData):
        return None
    return _fitting(octets, table[:count], settings, parsed.await_durable, parsed.producer_id, seq)


def _fitting(
    data: NDArray[np.uint8], table: NDArray[np.int64], settings: Settings, durable: bool, producer: str, seq: int
) -> Append | None:
    """The batch; None when it is over a limit."""
    many = ManyRecords(data, table)
    if many.longest_key > KEY_BYTES_MAX or many.longest_value > settings.log_record_bytes_max:
        return None
    return Append(many, durable, producer, seq) if many.size_bytes <= settings.log_batch_bytes_max else None


def _decoded(decode: Callable[[], T], kind: Any) -> T:
    """What `decode()` returns. Raises BadData that says why the body is not an append request."""
    try:
        return decode()
    except msgspec.MsgspecError as error:
        hint = "; plain text goes into `keyText` and `text`" if "base64" in str(error) else ""
        raise BadData(f"the body is not a valid append request: {explained(error, kind)}{hint}") from error
    except RecursionError as error:
        raise BadData("the body is not a valid append request: a JSON value is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise BadData(f"the body is not UTF-8: {error}") from error


def _from_json(body: bytes) -> _Lists:
    parsed = _decoded(lambda: _json.decode(body), _Append)
    return _request(parsed, columns(0, parsed.records))


def _request(parsed: _Append, records: RecordColumns) -> _Lists:
    seq = _producer_seq(parsed.producer_id, parsed.producer_seq)
    return _Lists(*records, parsed.await_durable, parsed.producer_id, seq)


def _from_proto_json(body: bytes) -> _Lists:
    try:
        return _from_json(body)  # the common form, which is decoded in one pass
    except BadData:
        pass
    parsed = _decoded(lambda: _proto_json.decode(body), _ProtoAppend)
    return _proto_request(parsed, proto_columns(0, parsed.records or ()))


def _proto_request(parsed: _ProtoAppend, records: RecordColumns) -> _Lists:
    producer = parsed.producer_id or parsed.producer_id_ or ""
    sent_seq = parsed.producer_seq if parsed.producer_seq is not None else parsed.producer_seq_
    seq = _producer_seq(producer, _integer(sent_seq))
    return _Lists(*records, bool(parsed.await_durable or parsed.await_durable_), producer, seq)


def _from_sliced_json(body: bytes, settings: Settings) -> _Lists:
    large = LargeObject(body, {"records": settings.log_records_max})
    parsed = _decoded(lambda: _json.decode(large.rest), _Append)
    return _request(parsed, _gathered(columns(*piece) for piece in _sliced(large, settings, _json_records)))


def _from_sliced_proto_json(body: bytes, settings: Settings) -> _Lists:
    try:
        return _from_sliced_json(body, settings)
    except BadData:
        pass
    large = LargeObject(body, {"records": settings.log_records_max})
    parsed = _decoded(lambda: _proto_json.decode(large.rest), _ProtoAppend)
    pieces = _sliced(large, settings, _proto_json_records)
    return _proto_request(parsed, _gathered(proto_columns(*piece) for piece in pieces))


def _gathered(pieces: Iterable[RecordColumns]) -> RecordColumns:
    joined = RecordColumns([], [], {})
    for piece in pieces:
        joined.keys.extend(piece.keys)
        joined.values.extend(piece.values)
        joined.headers.update(piece.headers)
    return joined


def _sliced(
    large: LargeObject, settings: Settings, decoder: msgspec.json.Decoder[list[T]]
) -> Iterator[tuple[int, list[T]]]:
    """(position of the first, records) of each slice of the body."""
    if (records := large.lists.get("records")) is not None:
        _require_few(records, settings, 4 / 3)
        for first, text in records:
            yield first, _decoded(partial(records.decode, first, text, decoder), decoder.type)


def _require_few(records: Slices, settings: Settings, growth: float) -> None:
    """Raises BadData for too many records, and TooLarge for a record that is so long that its key or value is over its
    limit. `growth`: the factor by which the encoding lengthens them."""
    _check_count(records.count, settings)
    most = growth * (KEY_BYTES_MAX + settings.log_record_bytes_max)
    records.require_elements_within(int(most) + ENCODED_BESIDE_BYTES_MAX + ENCODED_HEADERS_BYTES_MAX)


def _integer(value: int | str | None) -> int | None:
    if isinstance(value, str):
        if not value.isascii() or not value.isdigit():
            raise BadData(f"`$.producerSeq` is {_shortened(repr(value))}; it must be a whole number")
        digits = value.lstrip("0") or "0"
        value = int(digits) if len(digits) <= PRODUCER_SEQ_DIGITS else digits  # int() refuses very long ones
    if isinstance(value, str) or (value is not None and not 0 <= value <= PRODUCER_SEQ_MAX):
        raise BadData(f"`$.producerSeq` is {_shortened(str(value))}; it must be between 0 and {PRODUCER_SEQ_MAX}")
    return value


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * PRODUCER_SEQ_DIGITS else f"{text[: 2 * PRODUCER_SEQ_DIGITS]}…"


def _from_protobuf(body: bytes) -> _Lists:
    parsed = _message(body)
    return _proto_message(parsed, _message_columns(0, parsed))


def _message(body: bytes) -> log_pb2.AppendRequest:
    try:
        return log_pb2.AppendRequest.FromString(body)
    except DecodeError as error:
        raise BadData(f"the body is not a protobuf AppendRequest: {error}") from error


def _message_columns(first: int, parsed: log_pb2.AppendRequest) -> RecordColumns:
    """A message's records, of which the first is records[first] of the body."""
    keys = [record.key.value for record in parsed.records]
    if b"" in keys:
        for i, record in enumerate(parsed.records, first):
            if not record.HasField("key"):
                raise BadData(f"`records[{i}].key` is missing")
    headers = {}
    for i, record in enumerate(parsed.records, first):
        if record.tombstone and record.value:
            raise BadData(f"`records[{i}]` has `tombstone` and a `value`; the value of a tombstone must be empty")
        if record.headers or record.content_type or record.tombstone:
            headers[i] = packed(record.headers, record.content_type, f"records[{i}]", record.tombstone)
    return RecordColumns(keys, [record.value for record in parsed.records], headers)


def _proto_message(parsed: log_pb2.AppendRequest, records: RecordColumns) -> _Lists:
    seq = _producer_seq(parsed.producer_id, _integer(parsed.producer_seq) if parsed.producer_id else None)
    return _Lists(*records, parsed.await_durable, parsed.producer_id, seq)


def _from_sliced_protobuf(body: bytes, settings: Settings) -> _Lists:
    large = LargeMessage(body, log_pb2.AppendRequest.RECORDS_FIELD_NUMBER, "records", settings.log_records_max)
    _require_few(large.list, settings, 1)
    pieces = (_message_columns(first, _message(text)) for first, text in large.list)
    return _proto_message(_message(large.rest), _gathered(pieces))


def _producer_seq(producer: str, seq: int | None) -> int:
    if len(producer.encode()) > PRODUCER_BYTES_MAX:
        raise BadData(f"`producerId` has {len(producer.encode())} bytes; it may have at most {PRODUCER_BYTES_MAX}")
    if producer and seq is None:
        raise BadData("`producerSeq` is missing: a batch with `producerId` needs it")
    if not producer and seq is not None:
        raise BadData("`producerId` is missing: a batch with `producerSeq` needs it")
    return seq or 0


_READERS: dict[str, Callable[[bytes], _Lists]] = {
    JSON: _from_json,
    PROTOBUF_JSON: _from_proto_json,
    PROTOBUF: _from_protobuf,
}
_SLICED_READERS: dict[str, Callable[[bytes, Settings], _Lists]] = {
    JSON: _from_sliced_json,
    PROTOBUF_JSON: _from_sliced_proto_json,
    PROTOBUF: _from_sliced_protobuf,
}
_WALKS: dict[str, Callable[[bytes, Settings], Append | None]] = {
    JSON: _walked_json,
    PROTOBUF_JSON: _walked_json,
    PROTOBUF: _walked_protobuf,
}


def _check(append: _Lists, settings: Settings) -> None:
    if not append.keys:
        raise BadData("`records` is empty; it must hold at least one record")
    _check_count(len(append.keys), settings)
    _check_sizes(append.keys, KEY_BYTES_MAX, "key")
    _check_sizes(append.values, settings.log_record_bytes_max, "value")
    size_bytes = sum(map(len, append.keys)) + sum(map(len, append.values)) + sum(map(len, append.headers.values()))
    if size_bytes > settings.log_batch_bytes_max:
        raise TooLarge(
            f"`records` holds {size_bytes} bytes of keys and values; it may hold at most {settings.log_batch_bytes_max}"
        )


def _check_count(count: int, settings: Settings) -> None:
    if count > settings.log_records_max:
        raise BadData(f"`records` holds {count} records; it may hold at most {settings.log_records_max}")


def _check_sizes(items: Sequence[bytes], most: int, name: str) -> None:
    if max(map(len, items)) > most:
        i = next(i for i, item in enumerate(items) if len(item) > most)
        raise BadData(f"`records[{i}].{name}` has {len(items[i])} bytes; it may have at most {most}")
