"""The metadata messages of a remote-write request: the type, help and unit of metric families."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment"

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from coordinator.fanout.links import Links
from proto import remote_write_pb2
from shared.errors import TooLarge
from shared.hashing import shard_of
from shared.kernels import kernel, types
from shared.messages.series import FamilyMetadata, MetadataPut, MetadataPutReply
from shared.protobuf_fields import field_length
from shared.wire import Frame, pack, unpack
from shared.xxh64 import Bytes

METADATA_MAX = 10_000
"""Metadata messages of one request. Each takes 1 µs of interpreted code. Senders put 500 to 2,000 into one request."""
TEXT_BYTES_MAX = {"name": 1024, "help": 4096, "unit": 256}
MESSAGE_BYTES_MAX = 16 << 10
"""The most bytes of one message, including unknown fields."""
TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
"""The types, by their numbers in the protocol. A higher number counts as unknown."""

_SUFFIXES = {
    TYPES.index("histogram"): ("_bucket", "_sum", "_count"),
    TYPES.index("gaugehistogram"): ("_bucket", "_gsum", "_gcount"),
    TYPES.index("summary"): ("_sum", "_count"),
}
KNOWN_S = 60.0
"""How long metadata counts as stored. After that it is sent again, so that a shard that lost it gets it back; senders
of version 1.0 repeat theirs about as often."""
KNOWN_MAX = 100_000
"""Entries that are remembered as stored, at about 70 bytes each."""

_SPANS = types.Array(types.int64, 2, "C")
_TAG = 0x1A


@kernel(types.void(Bytes, _SPANS), first=True)
def _fill_spans(body: np.ndarray, spans: np.ndarray) -> None:
    at, i = 0, 0
    while i < len(spans):
        tag = body[at]
        size, at = field_length(body, at + 1, len(body))
        if tag == _TAG:
            spans[i, 0], spans[i, 1] = at, at + size
            i += 1
        at += size


def messages(body: NDArray[np.uint8], count: int) -> list[Frame]:
    """The `count` metadata messages of a body that has been walked."""
    spans = np.empty((count, 2), dtype=np.int64)
    _fill_spans(body, spans)
    return [body[start:end].data for start, end in spans.tolist()]


def check_count(count: int) -> None:
    if count > METADATA_MAX:
        raise TooLarge(f"the request has {count} metadata messages; the limit is {METADATA_MAX}")


def read(encoded: Iterable[Frame], refuse: Callable[[str], None]) -> list[FamilyMetadata]:
    """The valid messages, in order and without duplicates. For each invalid one, `refuse` is called with the reason."""
    entries: dict[FamilyMetadata, None] = {}
    for number, data in enumerate(encoded):
        if len(data) > MESSAGE_BYTES_MAX:
            refuse(f"metadata {number} has {len(data)} bytes; the limit is {MESSAGE_BYTES_MAX}")
            continue
        try:
            message = remote_write_pb2.MetricMetadata.FromString(bytes(data))
        except DecodeError as error:
            refuse(f"metadata {number} is not a MetricMetadata message with texts in UTF-8: {error}")
            continue
        texts = {"name": message.metric_family_name, "help": message.help, "unit": message.unit}
        entry = checked(texts, message.type, f"metadata {number}", refuse)
        if entry is not None:
            entries[entry] = None
    return list(entries)


def checked(texts: dict[str, str], kind: int, what: str, refuse: Callable[[str], None]) -> FamilyMetadata | None:
    """The entry of a family with these texts (`name`, `help` and `unit`) and the type number `kind`. If it is invalid,
    returns None and calls `refuse` with the reason, which begins with `what`."""
    problem = _problem(texts)
    if problem:
        refuse(f"{what} of metric family {texts['name'][:200]!r}: {problem}")
        return None
    type_name = TYPES[kind] if 0 <= kind < len(TYPES) else TYPES[0]
    return FamilyMetadata(texts["name"], type_name, texts["help"], texts["unit"])


def family_of(metric: str, kind: int) -> str:
    """The family of a metric of this type. Version 2.0 sends metadata with each series, version 1.0 with the name of
    the family. For a histogram or summary, the family is the series' name without its suffix."""
    for suffix in _SUFFIXES.get(kind, ()):
        if metric.endswith(suffix) and len(metric) > len(suffix):
            return metric.removesuffix(suffix)
    return metric


def _problem(texts: dict[str, str]) -> str:
    if not texts["name"]:
        return "it has no metric_family_name"
    for name, text in texts.items():
        size = len(text.encode())
        if size > TEXT_BYTES_MAX[name]:
            return f"its {name} has {size} bytes; the limit is {TEXT_BYTES_MAX[name]}"
    return ""


class KnownMetadata:
    """Hashes of the metadata stored recently. Version 2.0 repeats metadata in every request; it is sent to the workers
    only about once a minute. `in` and `keys` may be used in any thread, the other methods only in the event loop's."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._forgotten_at = time.monotonic()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def keys(self) -> AbstractSet[int]:
        """The current hashes, for use by one request."""
        return self._keys

    def add(self, keys: Iterable[int]) -> None:
        self._keys.update(keys)

    def forget(self) -> None:
        """Forget all hashes if they are old or too many."""
        now = time.monotonic()
        if now - self._forgotten_at >= KNOWN_S or len(self._keys) > KNOWN_MAX:
            self._keys, self._forgotten_at = set(), now


async def keep(links: Links, entries: Sequence[FamilyMetadata], timeout_s: float) -> int:
    """Store the entries on the shards that the families' names hash to. Returns how many found no room. Raises
    Unavailable if one of these shards is missing."""
    by_shard: dict[int, list[FamilyMetadata]] = {}
    for entry in entries:
        by_shard.setdefault(shard_of(entry.family.encode(), links.shards), []).append(entry)
    parts = {shard: [pack(MetadataPut(shard_entries))] for shard, shard_entries in by_shard.items()}
    replies = await links.call("series.metadata_put", parts=parts, timeout_s=timeout_s)
    return sum(unpack(reply.message.body, MetadataPutReply).left_out for reply in replies)
