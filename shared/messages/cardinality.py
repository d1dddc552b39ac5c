"""Messages of the worker method series.cardinality: the number of series by metric, by label and by label value."""

from __future__ import annotations

import msgspec

from shared.frames.samples import TIME_MS_MAX, TIME_MS_MIN
from shared.messages.series import Selectors


class CardinalityBody(msgspec.Struct):
    """Counts the series that match any selector. If a range of times is given, only those with samples in it count.

    `focus`: a label whose values are counted as well. `kept`, `text_bytes_max`: the most entries of a ranking, and
    bytes of their texts, that a worker sends. `hashes_max`: the most hashes of label values that it sends, so that
    values which several workers have are counted once; 0: none.
    """

    selectors: Selectors
    start_ms: int = TIME_MS_MIN
    end_ms: int = TIME_MS_MAX
    focus: str = ""
    kept: int = 1000
    text_bytes_max: int = 4 << 20
    hashes_max: int = 0

    @property
    def is_bounded(self) -> bool:
        """Whether there is a range of times."""
        return self.start_ms > TIME_MS_MIN or self.end_ms < TIME_MS_MAX


class Ranking(msgspec.Struct):
    """The entries with the most series, in descending order. `labels`: the label of each, if there are several labels.
    `grown`: how many of the series are new. `rest_max`: the most series that an entry which is left out can have."""

    names: list[str] = []
    labels: list[str] = []
    series: list[int] = []
    grown: list[int] = []
    rest_max: int = 0


class LabelName(msgspec.Struct, array_like=True):
    """`values`: the number of distinct values. `hashes`: how many of their hashes, the lowest ones, are in the frame.
    `series`: how many series have the label. `size_bytes`: the total size of its values in all of them."""

    name: str
    values: int
    hashes: int
    series: int
    size_bytes: int


class CardinalityReply(msgspec.Struct):
    """`label_pairs`: the labels of all counted series, in total. `grown`: how many of the series are newer than
    `grown_from`, in Unix seconds. `label_names_left_out`: how many label names `label_names` lacks. `chunks`,
    `earliest_ms`, `latest_ms`: of all samples in memory. The reply's frame has the hashes of the values, uint64[n], one
    label name after another."""

    series: int
    label_pairs: int
    grown: int
    grown_from: float
    chunks: int
    earliest_ms: int
    latest_ms: int
    metrics: Ranking
    growth: Ranking
    pairs: Ranking
    focus: Ranking
    label_names: list[LabelName]
    label_names_left_out: int
