"""The method `series.export`: the stored samples of one shard's series, a slice at a time."""

from __future__ import annotations

import msgspec

from shared.messages.series import Selectors
from shared.messages.sub_queries import Shape


class Cursor(msgspec.Struct, array_like=True, frozen=True):
    """Where the next slice of a shard begins: after the series with the permanent id `after`. `from_ms` None: at the
    beginning of a series; otherwise at this time of the series `after` + 1, whose earlier samples are in the previous
    slice. `span_ms`: how long a piece of that series fitted into a slice."""

    after: int = -1
    from_ms: int | None = None
    span_ms: int = 0


class ExportBody(msgspec.Struct):
    """Requests the next slice of one shard: series that match any selector, with their samples start ≤ t ≤ end in Unix
    ms. `samples`: how many a slice should have; `bytes_max`: what the worker may hold for it."""

    selectors: Selectors
    start_ms: int
    end_ms: int
    cursor: Cursor
    samples: int
    bytes_max: int


class ExportReply(msgspec.Struct):
    """The slice, a range vector in the reply's frames (`shared.messages.exchange`), staleness markers included, and
    where the next one begins. `following` None: this was the last slice."""

    shape: Shape
    following: Cursor | None
