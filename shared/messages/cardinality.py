"""Message of the worker method series.cardinality: how many series there are by metric, by label and by label value."""

from __future__ import annotations

import msgspec

from shared.messages.series import Selectors
from shared.sample_frames import TIME_MS_MAX, TIME_MS_MIN


class CardinalityBody(msgspec.Struct):
    """Counts the series that match any selector. If a range of times is given, only those with samples in it count.

    `focus`: the label whose values are counted, too. `kept`, `text_bytes_max`: entries of a ranking, and bytes of their
    texts, that a worker sends. `hashes_max`: hashes of label values that it sends, so that values which several workers
    have are counted once; 0: none.
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
    """Those with the most series, most first. `labels`: the name of the label of each, if they are of several labels.
    `grown`: how many of the series are new. `rest_max`: what one that is left out has at most."""

    names: list[str] = []
    labels: list[str] = []
    series: list[int] = []
    grown: list[int] = []
    rest_max: int = 0


class LabelName(msgspec.Struct, array_like=True):
    """`values`: how many different values there are; `hashes`: of how many of them, those with the lowest hashes, the
    hashes are in the frame; `series`: how many series have the label; `size_bytes`: of its value in all of them."""

    name: str
    values: int
    hashes: int
    series: int
    size_bytes: int


class CardinalityReply(msgspec.Struct):
    """`label_pairs`: labels of all counted series together. `grown`: how many of the series came after `grown_from`, in
    Unix seconds. `label_names_left_out`: how many label names there are beside `label_names`. `chunks`, `earliest_ms`,
    `latest_ms`: of all samples in memory. The reply's frame has the hashes of the values, uint64[n]: those of each
    label name after those of the one before."""

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
