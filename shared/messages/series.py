"""Messages of the worker methods series.write, series.list, series.labels, series.values, series.delete,
series.metadata_put and series.metadata."""

from __future__ import annotations

import msgspec

from shared.promql.ast import Matcher

Selectors = list[tuple[Matcher, ...]]
"""OR-ed; the matchers of one are AND-ed, and an empty one matches every series."""


class WriteAnswer(msgspec.Struct):
    """series.write takes one remote-write body or more per shard as part frames."""

    samples: int


class SelectRequest(msgspec.Struct):
    """Series that match any selector and have samples with start ≤ t ≤ end, in Unix ms.

    At most `limit` items are answered (0: all of them). `name` is the label whose values series.values is about.
    """

    selectors: Selectors
    start_ms: int
    end_ms: int
    limit: int = 0
    name: str = ""


class TextsAnswer(msgspec.Struct):
    """Label names or values, sorted, each once; `cut` if the limit left some out."""

    texts: list[str]
    cut: bool


class ListAnswer(msgspec.Struct):
    """The label sets are in the reply's frames (`LabelFrame.to_frames`); `cut` if the limit left some out."""

    series: int
    cut: bool


class DeleteRequest(msgspec.Struct):
    selectors: Selectors
    start_ms: int
    end_ms: int


class DeleteAnswer(msgspec.Struct):
    samples: int


class FamilyMetadata(msgspec.Struct, frozen=True, array_like=True):
    """What a sender says of a metric family. `type` is a word such as `counter`."""

    family: str
    type: str
    help: str
    unit: str


class MetadataPut(msgspec.Struct):
    """The part frames of series.metadata_put are each one of these."""

    entries: list[FamilyMetadata]


class MetadataPutAnswer(msgspec.Struct):
    """How many entries there was no room for."""

    left_out: int


class MetadataRequest(msgspec.Struct):
    """Of one family, or of at most `limit` families a shard if `family` is empty (0: all of them)."""

    family: str = ""
    limit: int = 0


class MetadataAnswer(msgspec.Struct):
    """Entries of a family are neighbours; `cut` if the limit left families out."""

    entries: list[FamilyMetadata]
    cut: bool
