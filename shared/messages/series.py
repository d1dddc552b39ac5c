"""Messages of the worker methods series.write, series.list, series.labels, series.values, series.delete,
series.metadata_put, series.metadata and series.exemplars."""

from __future__ import annotations

import msgspec

from shared.promql.ast import Matcher

Selectors = list[tuple[Matcher, ...]]
"""Selectors are OR-ed. The matchers of one selector are AND-ed; a selector without matchers matches every series."""


class WriteReply(msgspec.Struct):
    """Reply to series.write, whose part frames are one or more frames of samples or exemplars per shard
    (shared.frames.samples, shared.frames.references, shared.frames.exemplars).

    `samples`: how many were stored. `epochs`: shard → the epoch of its series numbers. `stale`: shard → which of its
    frames, counted from 0, were not stored because their series numbers are of another epoch. `numbered`: shard → which
    of its frames had labels of series; the numbers of these series are the reply's frames, in this order, int32[runs]
    each.
    """

    samples: int
    epochs: dict[int, int] = {}
    stale: dict[int, list[int]] = {}
    numbered: dict[int, list[int]] = {}


class SelectBody(msgspec.Struct):
    """Selects the series that match any selector and have samples with start ≤ t ≤ end, in Unix ms.

    A worker returns at most `limit` items (0: all of them). `name` is the label whose values series.values returns.
    """

    selectors: Selectors
    start_ms: int
    end_ms: int
    limit: int = 0
    name: str = ""


class TextsReply(msgspec.Struct):
    """Label names or values, sorted and distinct. `cut`: whether the limit left some out."""

    texts: list[str]
    cut: bool


class ListReply(msgspec.Struct):
    """The label sets are in the reply's frames (`LabelFrame.to_frames`). `cut`: whether the limit left some out."""

    series: int
    cut: bool


class ExemplarsReply(msgspec.Struct):
    """Reply to series.exemplars, whose body is a SelectBody with a limit on exemplars. The frames are those of the
    label sets (`LabelFrame.to_frames`) of the series that have exemplars, int64[series] counts, and int64[n] times,
    float64[n] values, int64[n + 1] offsets and uint8 bytes of the labels of all exemplars, by series and in the order
    of time. `cut`: whether the limit left some out."""

    series: int
    exemplars: int
    cut: bool


class DeleteBody(msgspec.Struct):
    """Body of series.delete, whose reply is empty."""

    selectors: Selectors
    start_ms: int
    end_ms: int


class FamilyMetadata(msgspec.Struct, frozen=True, array_like=True):
    """What a sender says about a metric family. `type` is a word such as `counter`."""

    family: str
    type: str
    help: str
    unit: str


class MetadataPut(msgspec.Struct):
    """One part frame of series.metadata_put."""

    entries: list[FamilyMetadata]


class MetadataPutReply(msgspec.Struct):
    """`left_out`: how many entries were not stored for lack of room."""

    left_out: int


class MetadataBody(msgspec.Struct):
    """Requests the metadata of one family, or of at most `limit` families per shard if `family` is empty (0: all)."""

    family: str = ""
    limit: int = 0


class MetadataReply(msgspec.Struct):
    """The entries of a family are adjacent. `cut`: whether the limit left families out."""

    entries: list[FamilyMetadata]
    cut: bool
