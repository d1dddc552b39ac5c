from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Register(_message.Message):
    __slots__ = ("pid", "worker", "cluster_id", "shards", "progress")
    PID_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    worker: str
    cluster_id: str
    shards: _containers.RepeatedCompositeFieldContainer[ShardState]
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, pid: _Optional[int] = ..., worker: _Optional[str] = ..., cluster_id: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[ShardState, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("call", "samples")
    CALL_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    call: bytes
    samples: int
    def __init__(self, call: _Optional[bytes] = ..., samples: _Optional[int] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("shard", "state", "detail", "counts")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        LOADING: _ClassVar[ShardState.State]
        READY: _ClassVar[ShardState.State]
        FAILED: _ClassVar[ShardState.State]
    LOADING: ShardState.State
    READY: ShardState.State
    FAILED: ShardState.State
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    state: ShardState.State
    detail: str
    counts: _containers.ScalarMap[str, int]
    def __init__(self, shard: _Optional[int] = ..., state: _Optional[_Union[ShardState.State, str]] = ..., detail: _Optional[str] = ..., counts: _Optional[_Mapping[str, int]] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("method", "timeout_ms", "shards", "body_frames", "part_shards", "part_frames", "sizes", "deadline_ns", "clock", "processor_us", "http_request", "trace_parent")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    BODY_FRAMES_FIELD_NUMBER: _ClassVar[int]
    PART_SHARDS_FIELD_NUMBER: _ClassVar[int]
    PART_FRAMES_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_NS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    PROCESSOR_US_FIELD_NUMBER: _ClassVar[int]
    HTTP_REQUEST_FIELD_NUMBER: _ClassVar[int]
    TRACE_PARENT_FIELD_NUMBER: _ClassVar[int]
    method: str
    timeout_ms: int
    shards: _containers.RepeatedScalarFieldContainer[int]
    body_frames: int
    part_shards: _containers.RepeatedScalarFieldContainer[int]
    part_frames: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    deadline_ns: int
    clock: int
    processor_us: int
    http_request: str
    trace_parent: str
    def __init__(self, method: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., shards: _Optional[_Iterable[int]] = ..., body_frames: _Optional[int] = ..., part_shards: _Optional[_Iterable[int]] = ..., part_frames: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., deadline_ns: _Optional[int] = ..., clock: _Optional[int] = ..., processor_us: _Optional[int] = ..., http_request: _Optional[str] = ..., trace_parent: _Optional[str] = ...) -> None: ...

class ReplyHeader(_message.Message):
    __slots__ = ("error_class", "error", "shard_errors", "timing_names", "timings_ms", "warnings", "sizes")
    ERROR_CLASS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    SHARD_ERRORS_FIELD_NUMBER: _ClassVar[int]
    TIMING_NAMES_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_MS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    error_class: str
    error: str
    shard_errors: _containers.RepeatedCompositeFieldContainer[ShardError]
    timing_names: _containers.RepeatedScalarFieldContainer[str]
    timings_ms: _containers.RepeatedScalarFieldContainer[float]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, error_class: _Optional[str] = ..., error: _Optional[str] = ..., shard_errors: _Optional[_Iterable[_Union[ShardError, _Mapping]]] = ..., timing_names: _Optional[_Iterable[str]] = ..., timings_ms: _Optional[_Iterable[float]] = ..., warnings: _Optional[_Iterable[str]] = ..., sizes: _Optional[_Iterable[int]] = ...) -> None: ...

class ShardError(_message.Message):
    __slots__ = ("shard", "reason")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    shard: int
    reason: str
    def __init__(self, shard: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
