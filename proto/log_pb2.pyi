from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendRequest(_message.Message):
    __slots__ = ("records", "await_durable", "producer_id", "producer_seq")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    AWAIT_DURABLE_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_SEQ_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    await_durable: bool
    producer_id: str
    producer_seq: int
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., await_durable: _Optional[bool] = ..., producer_id: _Optional[str] = ..., producer_seq: _Optional[int] = ...) -> None: ...

class Key(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("key", "value", "headers", "content_type", "tombstone")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    key: Key
    value: bytes
    headers: _containers.ScalarMap[str, str]
    content_type: str
    tombstone: bool
    def __init__(self, key: _Optional[_Union[Key, _Mapping]] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, str]] = ..., content_type: _Optional[str] = ..., tombstone: _Optional[bool] = ...) -> None: ...

class RecordHeaders(_message.Message):
    __slots__ = ("headers", "content_type", "tombstone")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_TYPE_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.ScalarMap[str, str]
    content_type: str
    tombstone: bool
    def __init__(self, headers: _Optional[_Mapping[str, str]] = ..., content_type: _Optional[str] = ..., tombstone: _Optional[bool] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("status", "records_appended", "start_sequence")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_APPENDED_FIELD_NUMBER: _ClassVar[int]
    START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    status: str
    records_appended: int
    start_sequence: int
    def __init__(self, status: _Optional[str] = ..., records_appended: _Optional[int] = ..., start_sequence: _Optional[int] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("status", "pages", "next_sequence", "log_start_sequence", "warnings")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LOG_START_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    status: str
    pages: _containers.RepeatedCompositeFieldContainer[Page]
    next_sequence: int
    log_start_sequence: int
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, status: _Optional[str] = ..., pages: _Optional[_Iterable[_Union[Page, _Mapping]]] = ..., next_sequence: _Optional[int] = ..., log_start_sequence: _Optional[int] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class Page(_message.Message):
    __slots__ = ("sequences", "value_lengths", "values", "key_lengths", "keys", "times_ms", "header_lengths", "headers")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    VALUE_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TIMES_MS_FIELD_NUMBER: _ClassVar[int]
    HEADER_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    value_lengths: _containers.RepeatedScalarFieldContainer[int]
    values: bytes
    key_lengths: _containers.RepeatedScalarFieldContainer[int]
    keys: bytes
    times_ms: _containers.RepeatedScalarFieldContainer[int]
    header_lengths: _containers.RepeatedScalarFieldContainer[int]
    headers: bytes
    def __init__(self, sequences: _Optional[_Iterable[int]] = ..., value_lengths: _Optional[_Iterable[int]] = ..., values: _Optional[bytes] = ..., key_lengths: _Optional[_Iterable[int]] = ..., keys: _Optional[bytes] = ..., times_ms: _Optional[_Iterable[int]] = ..., header_lengths: _Optional[_Iterable[int]] = ..., headers: _Optional[bytes] = ...) -> None: ...

class ErrorResponse(_message.Message):
    __slots__ = ("status", "message")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    status: str
    message: str
    def __init__(self, status: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
