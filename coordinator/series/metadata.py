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

from coordinator.links import Links
from proto import remote_write_pb2
from shared import kernel_types as types
from shared.errors import TooLarge
from shared.hashing import shard_of
from shared.kernels import kernel
from shared.messages.series import FamilyMetadata, MetadataPut, MetadataPutReply
from shared.protobuf_fields import field_length
from shared.wire import Frame, pack, unpack
from shared.xxh64 import Bytes

METADATA_MAX = 10_000
"""Metadata messages of one request, at a microsecond of interpreted code each; senders put 500 to 2,000 into one."""
TEXT_BYTES_MAX = {"name": 1024, "help": 4096, "unit": 256}
MESSAGE_BYTES_MAX = 16 << 10
"""One message with all its texts and unknown fields."""
TYPES = ("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset")
"""By their number in the protocol; a number beyond is unknown too."""

_SUFFIXES = {
    TYPES.index("histogram"): ("_bucket", "_sum", "_count"),
    TYPES.index("gaugehistogram"): ("_bucket", "_gsum", "_gcount"),
    TYPES.index("summary"): ("_sum", "_count"),
}
KNOWN_S = 60.0
"""How long metadata counts as stored: senders of version 1.0 repeat theirs as often, and a shard that lost it gets it
again."""
KNOWN_MAX = 100_000
"""Entries that are remembered as stored, at some 70 bytes each."""

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
    """The valid messages, each once, in their order; `refuse` is called with the reason for each of the others."""
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
    """The entry of a family with these texts (`name`, `help` and `unit`), `kind` being the number of its type. If it is
    not valid, None, and `refuse` is called with the reason, which begins with `what`."""
    problem = _problem(texts)
    if problem:
        refuse(f"{what} of metric family {texts['name'][:200]!r}: {problem}")
        return None
    name = TYPES[kind] if 0 <= kind < len(TYPES) else TYPES[0]
    return FamilyMetadata(texts["name"], name, texts["help"], texts["unit"])


def family_of(metric: str, kind: int) -> str:
    """The family of a metric whose metadata came with its series, as version 2.0 sends it: version 1.0 names the family
    itself, which for a histogram or summary is what the names of its series have in common."""
    for suffix in _SUFFIXES.get(kind, ()):
        if metric.endswith(suffix) and len(metric) > len(suffix):
            return metric.removesuffix(suffix)
    return metric


def _problem(texts: dict[str, str]) -> str:
    if not texts["name"]:
        return "it has no metric_family_name"
    for what, text in texts.items():
        size = len(text.encode())
        if size > TEXT_BYTES_MAX[what]:
            return f"its {what} has {size} bytes; the limit is {TEXT_BYTES_MAX[what]}"
    return ""


class KnownMetadata:
    """Metadata stored lately, by hashes of it: version 2.0 repeats it with every sample, and it is sent to the workers
    about once a minute. `in` and `keys` are safe in any thread, the rest is for the event loop's."""

    def __init__(self) -> None:
        self._keys: set[int] = set()
        self._forgotten_at = time.monotonic()

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    @property
    def keys(self) -> AbstractSet[int]:
        """All of them as of now, for one request."""
        return self._keys

    def add(self, keys: Iterable[int]) -> None:
        self._keys.update(keys)

    def forget(self) -> None:
        """Forget everything where it has become old or too much."""
        now = time.monotonic()
        if now - self._forgotten_at >= KNOWN_S or len(self._keys) > KNOWN_MAX:
            self._keys, self._forgotten_at = set(), now


async def keep(links: Links, entries: Sequence[FamilyMetadata], timeout_s: float) -> int:
    """Store the entries on the shards that the families' names hash to; returns for how many there was no room. Raises
    Unavailable when one of these shards is missing."""
    by_shard: dict[int, list[FamilyMetadata]] = {}
    for entry in entries:
        by_shard.setdefault(shard_of(entry.family.encode(), links.shards), []).append(entry)
    parts = {shard: [pack(MetadataPut(shard_entries))] for shard, shard_entries in by_shard.items()}
    replies = await links.call("series.metadata_put", parts=parts, timeout_s=timeout_s)
    return sum(unpack(reply.message.body, MetadataPutReply).left_out for reply in replies)
