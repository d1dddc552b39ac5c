"""Messages of the vector methods, and the columns of ids, attributes and vectors that travel with them.

Ids and attributes travel as two frames each: the concatenated bytes, and uint32 lengths. Vectors travel as one float32
frame, row by row.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.messages.vector_text import Highlighting, TextField, TextQuery, WordStatistics
from shared.wire import Frame

METRICS = ("cosine", "l2", "dot")
STORAGES = ("f32", "f16", "i8", "b1")
COSINE_STORAGES = ("i8", "b1")
INDEXES = ("lists", "graph")
"""What finds candidates: inverted lists, or an HNSW graph."""
ID_BYTES_MAX = 64
DIMENSION_MAX = 16_384  # embeddings in use have at most 12,288 components
HALF_MOST = 65_504.0
"""The largest finite float16."""
K_MAX = 10_000
READ_WHOLE = 10_000
"""Up to this many ids are read at once whatever the size of their vectors; for more, the bytes are bounded."""
VECTOR_FIELD = "vector"
ARRAY_ELEMENTS_MAX = 1024
ATTRIBUTES_MAX = 256
"""The most attributes of one vector, not counting its components."""

Floats = NDArray[np.float32]
Value = str | int | float | bool
Attribute = Value | list[Value]


def usual_index(storage: str) -> str:
    """The index of collections that do not request one."""
    return "graph" if storage == "b1" else "lists"


class Collection(msgspec.Struct, frozen=True):
    """What the shards must know about a collection. Every write carries it, so a shard gets it with its first vector.

    `id` is never reused. `text`: the attributes indexed for BM25; a name alone stands for a field with the defaults of
    `TextField`. That, and the omission of the usual index, keep the documents of earlier releases unchanged byte by
    byte.
    """

    id: int
    name: str
    dimension: int
    metric: str
    storage: str = "f32"
    text: tuple[str | TextField, ...] = ()
    index: str | msgspec.UnsetType = msgspec.UNSET
    """One of INDEXES, where it is not the usual one: see `kind_of_index`."""

    @property
    def kind_of_index(self) -> str:
        """One of INDEXES: lists unless a collection was created with a graph; with storage b1, always a graph."""
        return self.index or usual_index(self.storage)

    def text_fields(self) -> dict[str, TextField]:
        """The text fields by name."""
        fields = [TextField(entry) if isinstance(entry, str) else entry for entry in self.text]
        return {field.field: field for field in fields}


class Condition(msgspec.Struct, frozen=True, array_like=True):
    """One node of a filter. `op` is eq, neq, lt, lte, gt, gte (with `field` and one value), in (with `field` and many
    values), exists (with `field` only), or and, or, not (with `children`). A comparison holds for an array if it holds
    for one of its elements; neq is the opposite of eq.

    Only the coordinator makes `has` and `within` (with `field` and many values): the value is one of them, or of an
    array some element (`has`) or every element (`within`). They compare texts literally, even those that are
    datetimes."""

    op: str
    field: str = ""
    values: tuple[Value, ...] = ()
    children: tuple[Condition, ...] = ()


class UpsertBody(msgspec.Struct):
    """Parts: [ids, id lengths, vectors float32[n, dimension], attributes, attribute lengths] for each shard."""

    collection: Collection


class IdsBody(msgspec.Struct):
    """Methods vector.delete and vector.get. Parts: [ids, id lengths] for each shard. `fields`: see SearchBody.
    `bytes_max`: a larger read in one worker is refused; 0: no limit. `ids_total`: the ids of the whole request."""

    collection: Collection
    fields: tuple[str, ...] | None = None
    bytes_max: int = 0
    ids_total: int = 0


class CollectionBody(msgspec.Struct):
    collection: Collection


class VectorCountReply(msgspec.Struct):
    count: int


class ShardCollections(msgspec.Struct):
    """The collections in a shard's store, and the ids of those it has dropped."""

    shard: int
    collections: list[Collection]
    dropped: list[int]


class CollectionsReply(msgspec.Struct):
    shards: list[ShardCollections]


class SearchBody(msgspec.Struct):
    """Frames: [queries float32[q, dimension]], which has no rows if the search is by text only.

    `fields`: None for every attribute, including the vector; empty for ids and scores only. `shards_asked`: how many
    shards take part in the whole search. `expansion`: how far an index searches; 0: as far as `recall` requires.
    """

    collection: Collection
    k: int
    fields: tuple[str, ...] | None = None
    filter: Condition | None = None
    expansion: int = 0
    exact: bool = False
    text: TextQuery | None = None
    shards_asked: int = 1
    recall: float = 0.0


class SearchReply(msgspec.Struct):
    """The worker's best hits in one list for each query, best first.

    Frames: [counts int32[lists], similarities float32[n], ids, id lengths, attributes, attribute lengths, vectors
    float32[n, dimension] or empty]. A higher similarity means nearer, whatever the metric. With a text query, one more
    list follows: the hits by text. `unknown`: the filter's fields that no vector of this worker has. `vectors`: how
    many vectors this worker has. `nearest`: for some of the unknown fields, a field with a similar name.
    `words`: statistics of the text query's words, if it came without those of all workers and is sent to others too.
    """

    unknown: tuple[str, ...] = ()
    vectors: int = 0
    nearest: dict[str, str] = {}
    words: WordStatistics | None = None


class HighlightBody(msgspec.Struct):
    """Method vector.highlight. Parts: [ids, id lengths] for each shard. The reply's frames: [ids, id lengths,
    highlights, highlight lengths] of the vectors that exist, the highlights as JSON: field → its fragments."""

    collection: Collection
    text: TextQuery
    highlighting: Highlighting


class CollectionStats(msgspec.Struct):
    """Statistics of one collection in one worker. `dead`: rows of replaced and deleted vectors, until the index is
    rebuilt. `expansion`: how far an index searches by default; 0 until it has been measured. `queries_measured`: how
    many real queries it was measured with; 0: it was measured with queries made from the vectors."""

    collection: int
    vectors: int
    indexed: int
    dead: int
    memory_bytes: int
    expansion: int = 0
    queries_measured: int = 0


class StatsReply(msgspec.Struct):
    collections: list[CollectionStats]


def pack_blobs(blobs: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Byte strings as two frames: their concatenated bytes, and their lengths as uint32."""
    lengths = np.fromiter(map(len, blobs), dtype=np.uint32, count=len(blobs))
    return b"".join(blobs), lengths.tobytes()


def unpack_blobs(joined: Frame, lengths: Frame) -> list[bytes]:
    """Inverse of `pack_blobs`."""
    ends = np.frombuffer(lengths, dtype=np.uint32).cumsum(dtype=np.int64).tolist()
    data = bytes(joined)
    assert (ends[-1] if ends else 0) == len(data)
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def unpack_chosen(joined: bytes, lengths: Frame, places: NDArray[np.int64]) -> list[bytes]:
    """The byte strings at `places` of those that `pack_blobs` packed, in the order of `places`."""
    starts, ends = blob_bounds(joined, lengths, places)
    return [joined[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def blob_bounds(
    joined: bytes, lengths: Frame, places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the byte strings at `places` begin and end in `joined`, int64[n] each; see `unpack_chosen`."""
    sizes = np.frombuffer(lengths, dtype=np.uint32)
    ends = sizes.cumsum(dtype=np.int64)[places]
    assert not len(ends) or int(ends.max()) <= len(joined)
    return np.subtract(ends, sizes[places], dtype=np.int64), ends


def floats(frame: Frame, dimension: int) -> Floats:
    """A frame of float32 as an array [rows, dimension] that shares its memory."""
    assert 1 <= dimension <= DIMENSION_MAX
    return np.frombuffer(frame, dtype=np.float32).reshape(-1, dimension)
