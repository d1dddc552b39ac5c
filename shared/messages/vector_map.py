"""Messages for the map of a collection, whose computation calls the workers several times, and for the names of its
attributes.

The sample is drawn once (vector.sample). The other methods list its vectors in their parts, [ids, id lengths] for each
shard, and leave out those that have been deleted since.
"""

from __future__ import annotations

import msgspec

from shared.messages.selected_vectors import SelectionReply
from shared.messages.vectors import Collection, Condition, Value

SAMPLE_MAX = 5000
"""Vectors of a map."""
NAMES_MAX = 1000
"""The most names of attributes that a worker reports."""


class SampleBody(msgspec.Struct):
    """Method vector.sample: the `limit` selected vectors whose ids have the lowest hashes, which are the same ones each
    time, however the vectors are divided among workers. `attribute`: see `CoordinatesBody`."""

    collection: Collection
    filter: Condition | None
    limit: int
    attribute: str = ""


class SampleReply(SelectionReply):
    """Frames: [hashes uint64[n], ids, id lengths], in the order of the hashes. `count`: how many are selected."""

    count: int = 0


class MomentsBody(msgspec.Struct):
    """Method vector.moments: the sum of the vectors, and their largest component."""

    collection: Collection


class MomentsReply(msgspec.Struct):
    """Frames: [the sum of the vectors, float64[dimension]]. `largest`: the absolute value of a component."""

    count: int
    largest: float


class SpreadBody(msgspec.Struct):
    """Method vector.spread: X·Xᵀ·axes, where X are the vectors divided by `scale`, less their mean.

    Frames: [mean float32[dimension], of the vectors divided by `scale`; axes float32[a, dimension]]. The reply's
    frames: [products float32[a, dimension]]."""

    collection: Collection
    scale: float


class CoordinatesBody(msgspec.Struct):
    """Method vector.coordinates: where the vectors are on two axes. Frames: as in `SpreadBody`. `attribute`: the one
    whose values to return; empty for none."""

    collection: Collection
    scale: float
    attribute: str = ""


class CoordinatesReply(msgspec.Struct):
    """Frames: [ids, id lengths, coordinates float32[n, a]]. `values`: of the attribute, None for a vector without it;
    the first element of an array, the beginning of a long text. `squares`: the sum of the squared lengths of the
    vectors, divided and less the mean as in `SpreadBody`."""

    values: list[Value | None]
    squares: float


class AttributesBody(msgspec.Struct):
    """Method vector.attributes: which attributes the vectors of a collection have."""

    collection: Collection


class AttributesReply(msgspec.Struct):
    """`attributes`: name → type → how many vectors have a value of that type, for the first NAMES_MAX names. `names`:
    the number of all names."""

    attributes: dict[str, dict[str, int]]
    names: int
