"""Puts series that the workers rendered into one order by copying their text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from coordinator.queries import label_order
from shared.kernels import kernel, types
from shared.messages.exchange import Rendered
from shared.messages.sub_queries import Form
from shared.promql.model import Int
from shared.promql.rendering.labels import Bytes
from shared.promql.rendering.series import SeriesWriter, Text


class AskAgain(Exception):
    """The query must be asked again in a way that brings the workers' series together as arrays."""


class SeriesBecameEqual(AskAgain):
    """Series of different workers have the same label set. Only a process that has both can say whether they may become
    one."""


class SeriesTooLong(AskAgain):
    """A worker rendered its series, and another one has a series whose text is too long to be in memory at once."""


@dataclass(frozen=True, slots=True)
class Part:
    """A worker's series in the order of their label sets: `texts`, each rendered or released when it is taken. `heads`
    are the same series, read only for the text of their labels."""

    heads: Sequence[Text]
    texts: Iterator[Text]

    @property
    def series(self) -> int:
        return sum(head.series for head in self.heads)


def received(value: Rendered) -> Part:
    """What a worker rendered."""
    waiting = deque(value.texts)

    def texts() -> Iterator[Text]:
        while waiting:
            yield waiting.popleft()

    return Part(tuple(waiting), texts())


def written(writer: SeriesWriter) -> Part:
    """What a worker sent as arrays, rendered here."""
    return Part((writer.heads(),), writer.texts())


class Joined:
    """The series of all workers, in the order of their label sets; can be read once.

    Raises SeriesBecameEqual where two of them have the same label set.
    """

    def __init__(self, parts: Sequence[Part], form: Form) -> None:
        self.form = form
        non_empty = [part for part in parts if part.series]
        self.series = sum(part.series for part in non_empty)
        self._texts = [part.texts for part in non_empty]
        self._places = _places([part.heads for part in non_empty]) if len(non_empty) > 1 else []

    def chunks(self) -> Iterator[memoryview]:
        """The elements of a JSON array, with the commas between them, in pieces of about one worker's text."""
        begun = False
        for chunk in self._interleaved() if self._places else self._one_after_another():
            yield chunk if begun else chunk[1:]
            begun = True

    def _one_after_another(self) -> Iterator[memoryview]:
        for texts in self._texts:
            for text in texts:
                yield text.data.data

    def _interleaved(self) -> Iterator[memoryview]:
        cursors = [_Cursor(texts, places) for texts, places in zip(self._texts, self._places, strict=True)]
        first = 0
        while first < self.series:
            last = min(cursor.reach(self.series) for cursor in cursors)
            taken = [cursor.take(first, last) for cursor in cursors]
            lengths = np.zeros(last - first + 1, dtype=np.int64)
            for rows, starts, ends, _ in taken:
                lengths[rows + 1] = ends - starts
            offsets = np.cumsum(lengths)
            out = np.empty(offsets[-1], dtype=np.uint8)
            for rows, starts, ends, data in taken:
                _place(data, starts, ends, offsets[rows], out)
            yield out.data
            first = last


class _Cursor:
    """How far one worker's texts have been taken. `places`: int64[series], where its series stand in the answer."""

    def __init__(self, texts: Iterator[Text], places: Int) -> None:
        self._texts = texts
        self._places = places
        self._first = 0  # the number, among the worker's series, of the text's first
        self._text = next(texts)
        self._starts = self._text.starts()

    def reach(self, series: int) -> int:
        """The place of the worker's first series that is not in its text."""
        last = self._first + self._text.series
        return int(self._places[last]) if last < len(self._places) else series

    def take(self, first: int, last: int) -> tuple[Int, Int, Int, Bytes]:
        """The series at the places first ≤ i < last, none of them beyond the reach: (their places from `first`, where
        each starts and ends in the bytes; the bytes)."""
        low, high = np.searchsorted(self._places, (first, last))
        rows = slice(int(low) - self._first, int(high) - self._first)
        taken = self._places[low:high] - first, self._starts[rows], self._text.ends[rows], self._text.data
        if rows.stop == self._text.series and high < len(self._places):
            self._first += self._text.series
            self._text = next(self._texts)
            self._starts = self._text.starts()
        return taken


def _places(heads: Sequence[Sequence[Text]]) -> list[Int]:
    """For each worker int64[its series]: where in the answer they stand. Raises SeriesBecameEqual."""
    lengths = [text.label_ends - text.starts() for texts in heads for text in texts]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    keys = np.empty(offsets[-1], dtype=np.uint8)
    at = 0
    for text in (text for texts in heads for text in texts):
        _place(text.data, text.starts(), text.label_ends, offsets[at : at + text.series], keys)
        at += text.series
    bounds = np.cumsum([0, *(sum(text.series for text in texts) for texts in heads)])
    runs = [np.arange(first, last) for first, last in pairwise(bounds.tolist())]
    order = label_order.merged(keys, offsets, runs)
    if order is None:
        raise SeriesBecameEqual
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return np.split(place, bounds[1:-1])


_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_INTS = types.Array(types.int64, 1, "C", readonly=True)


@kernel(types.void(_BYTES, _INTS, _INTS, _INTS, types.uint8[::1]))
def _place(data: Any, starts: Any, ends: Any, places: Any, out: Any) -> None:
    """Copy each data[starts[i]:ends[i]] to out[places[i]:]."""
    for i in range(len(starts)):
        # Unsigned indices spare the check whether an index counts from the end: ten times the speed.
        begin, to = np.uint64(starts[i]), np.uint64(places[i])
        for at in range(np.uint64(ends[i] - starts[i])):
            out[to + at] = data[begin + at]
