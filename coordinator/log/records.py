"""Append requests: from the three content types to keys and values, checked.

JSON is the interface's; ProtoJSON also takes what its rules allow (snake_case names, null, base64url, unpadded base64,
integers as text). Field names in errors are paths into the body, such as `$.records[3].key`.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec
from google.protobuf.message import DecodeError

from proto import log_pb2
from shared.config import Settings
from shared.errors import BadData, TooLarge
from shared.messages.log import KEY_BYTES_MAX

PRODUCER_BYTES_MAX = 256
PRODUCER_SEQ_MAX = (1 << 63) - 1


@dataclass(slots=True)
class Append:
    """One batch. `producer` is "" for an append that is not idempotent."""

    keys: list[bytes]
    values: list[bytes]
    durable: bool
    producer: str
    producer_seq: int

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.keys)) + sum(map(len, self.values))


class _Key(msgspec.Struct, forbid_unknown_fields=True):
    value: bytes


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: bytes | _Key
    value: bytes


class _Append(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    records: list[_Record]
    await_durable: bool = False
    producer_id: str = ""
    producer_seq: Annotated[int, msgspec.Meta(ge=0, le=PRODUCER_SEQ_MAX)] | None = None


class _ProtoKey(msgspec.Struct, forbid_unknown_fields=True):
    value: str | None = None


class _ProtoRecord(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    key: str | _ProtoKey | None = None
    value: str | None = None


class _ProtoAppend(msgspec.Struct, forbid_unknown_fields=True):
    records: list[_ProtoRecord] | None = None
    await_durable: bool | None = None
    await_durable_: bool | None = msgspec.field(name="awaitDurable", default=None)
    producer_id: str | None = None
    producer_id_: str | None = msgspec.field(name="producerId", default=None)
    producer_seq: int | str | None = None
    producer_seq_: int | str | None = msgspec.field(name="producerSeq", default=None)


_json = msgspec.json.Decoder(_Append)
_proto_json = msgspec.json.Decoder(_ProtoAppend)


def parse(content_type: str, body: bytes, settings: Settings) -> Append:
    """The batch in `body`. Raises BadData naming the field that is wrong, TooLarge for a batch over its limit."""
    reader = _READERS.get(content_type)
    if reader is None:
        raise BadData(f"Content-Type is {content_type!r}; it must be one of {', '.join(_READERS)}")
    append = reader(body)
    _check(append, settings)
    return append


def _from_json(body: bytes) -> Append:
    try:
        parsed = _json.decode(body)
    except msgspec.MsgspecError as error:
        raise BadData(f"the body is not a valid append request: {error}") from error
    except UnicodeDecodeError as error:
        raise BadData(f"the body is not UTF-8: {error}") from error
    keys = [key if type(key) is bytes else key.value for key in [r.key for r in parsed.records]]  # type: ignore[union-attr]
    seq = _producer_seq(parsed.producer_id, parsed.producer_seq)
    return Append(keys, [r.value for r in parsed.records], parsed.await_durable, parsed.producer_id, seq)


def _from_proto_json(body: bytes) -> Append:
    try:
        return _from_json(body)  # the common form, decoded in one go
    except BadData:
        pass
    try:
        parsed = _proto_json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadData(f"the body is not a valid append request: {error}") from error
    keys, values = [], []
    for i, record in enumerate(parsed.records or ()):
        text = record.key.value or "" if isinstance(record.key, _ProtoKey) else record.key
        if text is None:
            raise BadData(f"`$.records[{i}].key` is missing")
        keys.append(_base64(text, f"$.records[{i}].key"))
        values.append(_base64(record.value or "", f"$.records[{i}].value"))
    producer = parsed.producer_id or parsed.producer_id_ or ""
    given = parsed.producer_seq if parsed.producer_seq is not None else parsed.producer_seq_
    seq = _producer_seq(producer, _integer(given))
    return Append(keys, values, bool(parsed.await_durable or parsed.await_durable_), producer, seq)


def _integer(value: int | str | None) -> int | None:
    if isinstance(value, str):
        if not value.isascii() or not value.isdigit():
            raise BadData(f"`$.producerSeq` is {value!r}; it must be a whole number")
        value = int(value)
    if value is not None and not 0 <= value <= PRODUCER_SEQ_MAX:
        raise BadData(f"`$.producerSeq` is {value}; it must be between 0 and {PRODUCER_SEQ_MAX}")
    return value


def _base64(text: str, where: str) -> bytes:
    standard = text.replace("-", "+").replace("_", "/").rstrip("=")
    try:
        return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadData(f"`{where}` is not base64: {error}") from error


def _from_protobuf(body: bytes) -> Append:
    try:
        parsed = log_pb2.AppendRequest.FromString(body)
    except DecodeError as error:
        raise BadData(f"the body is not a protobuf AppendRequest: {error}") from error
    keys = [record.key.value for record in parsed.records]
    if b"" in keys:
        for i, record in enumerate(parsed.records):
            if not record.HasField("key"):
                raise BadData(f"`records[{i}].key` is missing")
    seq = _producer_seq(parsed.producer_id, _integer(parsed.producer_seq) if parsed.producer_id else None)
    values = [record.value for record in parsed.records]
    return Append(keys, values, parsed.await_durable, parsed.producer_id, seq)


def _producer_seq(producer: str, seq: int | None) -> int:
    if len(producer.encode()) > PRODUCER_BYTES_MAX:
        raise BadData(f"`producerId` has {len(producer.encode())} bytes; it may have at most {PRODUCER_BYTES_MAX}")
    if producer and seq is None:
        raise BadData("`producerSeq` is missing: a batch with `producerId` needs it")
    if not producer and seq is not None:
        raise BadData("`producerId` is missing: a batch with `producerSeq` needs it")
    return seq or 0


_READERS: dict[str, Callable[[bytes], Append]] = {
    "application/json": _from_json,
    "application/protobuf+json": _from_proto_json,
    "application/protobuf": _from_protobuf,
}


def _check(append: Append, settings: Settings) -> None:
    if not append.keys:
        raise BadData("`records` is empty; it must hold at least one record")
    if len(append.keys) > settings.log_records_max:
        raise BadData(f"`records` holds {len(append.keys)} records; it may hold at most {settings.log_records_max}")
    _check_sizes(append.keys, KEY_BYTES_MAX, "key")
    _check_sizes(append.values, settings.log_record_bytes_max, "value")
    if append.size_bytes > settings.log_batch_bytes_max:
        raise TooLarge(
            f"`records` holds {append.size_bytes} bytes of keys and values; it may hold at most "
            f"{settings.log_batch_bytes_max}"
        )


def _check_sizes(items: Sequence[bytes], most: int, name: str) -> None:
    if max(map(len, items)) > most:
        i = next(i for i, item in enumerate(items) if len(item) > most)
        raise BadData(f"`records[{i}].{name}` has {len(items[i])} bytes; it may have at most {most}")
