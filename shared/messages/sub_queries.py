"""The method `query.evaluate`: several sub-queries of one query, evaluated over the union of the request's shards."""

from __future__ import annotations

from typing import Literal

import msgspec

Mode = Literal["value", "partial", "relabelled", "presence", "samples", "series", "info", "newest"]
"""What a sub-query returns: its value; the partial form of its top aggregation; the same with the hashes of the
aggregated label sets, if a label function made these; the partial form of the aggregation that tells whether it has any
series (`types.presence`); for a range selector whose function cannot run in the workers, the samples of its series
between the ends of the grid, or only the series that have any there; for `timestamp` of the info series of `info`, its
value, but NaN where a sample is a histogram; or, for a selector at one time, the sample of each series that it selects,
with the sample's own timestamp."""

Form = Literal["arrays", "vector", "matrix"]
"""The form in which a worker may return the value if the sub-query is the whole query: arrays, or the text of the
response's series as an instant vector or a matrix. If text is allowed, a worker may still return arrays."""


class SubQuery(msgspec.Struct, array_like=True, frozen=True):
    """PromQL `text` over its own grid, which differs from the query's inside a PromQL subquery. `finds_resets` as in
    `EvalContext`."""

    text: str
    mode: Mode
    start_ms: int
    end_ms: int
    step_ms: int
    finds_resets: bool = False


class EvaluateBody(msgspec.Struct, array_like=True, frozen=True):
    """The request. The grid is that of the whole query: `start()`, `end()`, `step()` and `range()` refer to it.
    `samples_max`, `bytes_max`: what the query may hold at a time in one worker; 0 bytes: no limit. `is_alone`: no other
    worker is asked, so a text is the complete response however short it is. `explains`: the reply should say what was
    read from each shard."""

    start_ms: int
    end_ms: int
    step_ms: int
    lookback_ms: int
    samples_max: int
    subqueries: tuple[SubQuery, ...]
    form: Form = "arrays"
    bytes_max: int = 0
    is_alone: bool = False
    explains: bool = False


class Shape(msgspec.Struct, array_like=True, frozen=True):
    """How a value is laid out in its frames (`shared.messages.exchange`). `planes`: names of a partial's planes.
    `histograms`: one more frame has those that values refer to. `hashed`: the last frame has the hashes of label sets.
    For a text, `series` has the number of series in each of its frames, and `cells` how many numbers the value held."""

    kind: Literal["matrix", "range", "partial", "text"]
    steps: int
    frames: int
    planes: tuple[str, ...] = ()
    hashed: bool = False
    series: tuple[int, ...] = ()
    cells: int = 0
    histograms: bool = False


class Remark(msgspec.Struct, array_like=True, frozen=True):
    """An annotation; `offset` is in characters of the sub-query's text."""

    level: str
    text: str
    offset: int | None


class ShardRead(msgspec.Struct, array_like=True, frozen=True):
    """What a sub-query read from one shard, repeated reads included. `elapsed_ms`: the time for reading alone."""

    shard: int
    series: int
    samples: int
    elapsed_ms: float


class SubQueryReply(msgspec.Struct, array_like=True, frozen=True):
    """The reply to one sub-query, whose frames follow those of the sub-queries before it. In `samples_read`, a
    histogram counts as one sample plus one for each bucket; `buckets_read` is the part that was for buckets.
    `has_matched`: some series matches a selector, even if it has no samples in the requested time. `shard_reads`: if
    requested."""

    shape: Shape
    remarks: tuple[Remark, ...]
    samples_read: int
    elapsed_ms: float
    series_read: int = 0
    buckets_read: int = 0
    has_matched: bool = True
    shard_reads: tuple[ShardRead, ...] = ()


class EvaluateReply(msgspec.Struct, array_like=True, frozen=True):
    """`samples_peak`: the most samples held at a time."""

    answers: tuple[SubQueryReply, ...]
    samples_peak: int = 0
