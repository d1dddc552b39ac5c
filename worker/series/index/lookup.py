"""Finds series by their labels, and reads their labels as columns, in the index as it was at one moment.

A selection starts from the postings of its most selective matcher, among the matchers that require a label. The other
matchers are tests on the candidates' label columns, where each distinct value is tested once. So a matcher that matches
the empty text also selects series without the label, as in Prometheus
(https://prometheus.io/docs/prometheus/latest/querying/basics/).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import NotExecutable
from shared.kernels import kernel, types
from shared.labels import Codes, LabelFrame, Symbols
from shared.promql.ast import Matcher
from shared.promql.regex import unchecked
from worker.series.index.patterns import Pattern, Patterns
from worker.series.index.postings import Ids, PostingLists, joined

FRAME_CELLS_MAX = 1 << 27
"""Series × label names of one frame (512 MB). A selector above this selects too many series with different labels."""

_IDS = types.Array(types.int64, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
_CODES = types.Array(types.int32, 1, "C", readonly=True)
_FLAGS = types.Array(types.boolean, 1, "C")
_CELLS = types.Array(types.int32, 2, "C")


@kernel(types.void(_IDS, _OFFSETS, _CODES, _FLAGS), first=True)
def _mark_names(ids: np.ndarray, offsets: np.ndarray, names: np.ndarray, is_used: np.ndarray) -> None:
    """Set is_used[name] for every label name of the series `ids`."""
    for i in range(len(ids)):
        for at in range(offsets[ids[i]], offsets[ids[i] + 1]):
            is_used[names[at]] = True


@kernel(types.void(_IDS, _OFFSETS, _CODES, _CODES, _CODES, _CELLS), first=True)
def _fill_columns(
    ids: np.ndarray,
    offsets: np.ndarray,
    names: np.ndarray,
    values: np.ndarray,
    column_of: np.ndarray,
    out: np.ndarray,
) -> None:
    """out[column_of[name], i] = the value's code, for every label of series ids[i] whose name has a column (≥ 0)."""
    for i in range(len(ids)):
        for at in range(offsets[ids[i]], offsets[ids[i] + 1]):
            column = column_of[names[at]]
            if column >= 0:
                out[column, i] = values[at]


@dataclass(frozen=True, slots=True)
class Lookup:
    """A frozen view of one shard's index; safe to read while the index grows.

    Series i has the labels label_names[label_offsets[i]:label_offsets[i + 1]] (numbers: positions in `name_texts` and
    `name_codes`); their values are at the same positions of `label_values` (codes of `symbols`). `numbers`: label name
    → its number.
    """

    symbols: Symbols
    patterns: Patterns
    size: int
    label_offsets: NDArray[np.int64]
    label_names: Codes
    label_values: Codes
    name_texts: Sequence[str]
    name_codes: Codes
    numbers: Mapping[str, int]
    postings: PostingLists

    def select_any(self, selectors: Iterable[Sequence[Matcher]], check: Callable[[], None] = unchecked) -> Ids:
        """Ascending ids of the series that match any of the selectors; `select` has the rules for one."""
        ids = [self.select(matchers, check) for matchers in selectors]
        return ids[0] if len(ids) == 1 else np.unique(np.concatenate(ids))

    def select(self, matchers: Sequence[Matcher], check: Callable[[], None] = unchecked) -> Ids:
        """Ascending ids of the series that match all matchers. `check` is called between costly steps and may raise.

        Raises BadData for an expression RE2 refuses, NotExecutable for one that is too costly for a label's value.
        """
        tests = []
        for matcher in matchers:
            check()  # compiling an expression may take 20 ms
            tests.append(_Test.of(matcher, self))
        needed = [test for test in tests if not test.allows_absence]
        if needed:
            best = needed[0] if len(needed) == 1 else min(needed, key=lambda test: test.cost(self))
            tests.remove(best)
            ids = best.ids(self, check)
        else:
            ids = np.arange(self.size, dtype=np.int64)
        for test in tests:
            if not len(ids):
                break
            ids = ids[test.of_codes(self.column(ids, test.name), self, check)]
        return ids

    def column(self, ids: Ids, name: str) -> Codes:
        """int32[n]: the code of each series' value of one label, 0 where it has none."""
        column_of = np.full(len(self.name_texts), -1, dtype=np.int32)
        out = np.zeros((1, len(ids)), dtype=np.int32)
        number = self.numbers.get(name)
        if number is not None and number < len(column_of):
            column_of[number] = 0
            _fill_columns(ids, self.label_offsets, self.label_names, self.label_values, column_of, out)
        return out[0]

    def names(self, ids: Ids) -> list[str]:
        """The label names that any of these series has."""
        return [self.name_texts[number] for number in self._name_numbers(ids).tolist()]

    def frame_bytes(self, ids: Ids) -> int:
        """The size of the columns of `frame`."""
        return 4 * len(ids) * len(self._name_numbers(ids))

    def frame(self, ids: Ids, symbols: Symbols) -> LabelFrame:
        """The label sets of these series, in codes of `symbols`, which is the index's own table or one that extends it.
        Raises NotExecutable above FRAME_CELLS_MAX."""
        if not len(ids):
            return LabelFrame(symbols, 0)
        numbers = self._name_numbers(ids)
        if len(numbers) * len(ids) > FRAME_CELLS_MAX:
            raise NotExecutable(
                f"the selector reaches {len(ids)} series with {len(numbers)} different label names in one shard, "
                "which is too much for one query; narrow it"
            )
        column_of = np.full(len(self.name_texts), -1, dtype=np.int32)
        column_of[numbers] = np.arange(len(numbers), dtype=np.int32)
        out = np.zeros((len(numbers), len(ids)), dtype=np.int32)
        _fill_columns(ids, self.label_offsets, self.label_names, self.label_values, column_of, out)
        if symbols is not self.symbols:
            out = symbols.adopt(out.reshape(-1)).reshape(out.shape)
        names = [self.name_texts[number] for number in numbers.tolist()]
        return LabelFrame(symbols, len(ids), dict(zip(names, out, strict=True)))

    def _name_numbers(self, ids: Ids) -> NDArray[np.int64]:
        """The ascending numbers of the label names that any of these series has."""
        is_used = np.zeros(len(self.name_texts), dtype=np.bool_)
        _mark_names(ids, self.label_offsets, self.label_names, is_used)
        return np.flatnonzero(is_used)


@dataclass(slots=True, eq=False)
class _Test:
    """A resolved matcher: it accepts the texts of `codes` (if None, the texts that `pattern` matches), or all others if
    `negative`. Code 0, the empty text, stands for a missing label. `pieces`: the postings of the codes, once they have
    been looked up."""

    name: str
    codes: Codes | None
    pattern: Pattern | None
    negative: bool
    allows_absence: bool
    pieces: list[NDArray[np.int32]] | None = None

    @classmethod
    def of(cls, matcher: Matcher, lookup: Lookup) -> _Test:
        negative = matcher.op in ("!=", "!~")
        pattern = lookup.patterns.get(matcher.value) if matcher.op in ("=~", "!~") else None
        texts = [matcher.value] if pattern is None else pattern.literals
        if texts is None:
            assert pattern is not None
            return cls(matcher.name, None, pattern, negative, pattern.matches("") != negative)
        known_codes = (lookup.symbols.find(text) for text in texts)
        codes = np.array(sorted({code for code in known_codes if code is not None}), dtype=np.int32)
        return cls(matcher.name, codes, None, negative, ("" in texts) != negative)

    def of_codes(self, codes: Codes, lookup: Lookup, check: Callable[[], None]) -> NDArray[np.bool_]:
        """bool[n]: which of these codes the test accepts."""
        if self.codes is not None:
            is_accepted = codes == self.codes[0] if len(self.codes) == 1 else np.isin(codes, self.codes)
        else:
            assert self.pattern is not None
            is_accepted = self.pattern.matches_codes(codes, lookup.symbols, check)
        return ~is_accepted if self.negative else is_accepted

    def cost(self, lookup: Lookup) -> tuple[int, int]:
        """The cost of a selection that starts from this test, for comparison: (0, number of series) if this number is
        known, else (1, number of values to test)."""
        number = lookup.numbers.get(self.name)
        if number is None:
            return 0, 0
        if self.codes is not None and not self.negative:
            return 0, sum(map(len, self._pieces(lookup, number)))
        return 1, lookup.postings.values_bound(number)

    def _pieces(self, lookup: Lookup, number: int) -> list[NDArray[np.int32]]:
        """The postings of the codes for the name with this number."""
        assert self.codes is not None
        if self.pieces is None:
            code_pieces = (lookup.postings.pieces(number, code) for code in self.codes.tolist())
            self.pieces = [piece for pieces in code_pieces for piece in pieces]
        return self.pieces

    def ids(self, lookup: Lookup, check: Callable[[], None]) -> Ids:
        """Ascending ids of the series that have the label with a value that the test accepts."""
        number = lookup.numbers.get(self.name)
        if number is None or (self.codes is not None and not self.negative and not len(self.codes)):
            return np.zeros(0, dtype=np.int64)
        if self.codes is not None and not self.negative:
            if len(self.codes) == 1:
                return joined(self._pieces(lookup, number))
            return lookup.postings.union(number, self.codes)
        values = lookup.postings.values(number)
        return lookup.postings.union(number, values[self.of_codes(values, lookup, check)])
