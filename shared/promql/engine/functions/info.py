"""`info`: adds to series the labels of the info series with the same identifying labels.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/#info. If several info series of one metric
match at a step, the one with the newest sample counts. The values of info series are therefore the timestamps of their
samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shared.errors import Internal, NotExecutable
from shared.labels import METRIC_NAME, Rows, row_ids
from shared.promql.ast import (
    Aggregate,
    Binary,
    Call,
    Expr,
    Matcher,
    MatrixSelector,
    Paren,
    Remote,
    Subquery,
    Unary,
    VectorSelector,
)
from shared.promql.engine import scan
from shared.promql.engine.context import EvalContext, resolved
from shared.promql.engine.functions.arguments import Function, bare, vector
from shared.promql.engine.matching import label_text, presence_counts
from shared.promql.engine.rows import layers, stack, take, united, without_empty
from shared.promql.model import Bool, Grid, Matrix, Value
from shared.promql.regex import Regex, matches_empty

IDENTIFYING = ("instance", "job")
"""The labels that determine which info series belongs to a series."""

DEFAULT_NAME = Matcher(METRIC_NAME, "=", "target_info")
ANY_INFO = Matcher(METRIC_NAME, "=~", ".+_info")
"""The names of info metrics if the query does nothing but exclude names."""

NONE = -1


def info_selector(call: Call) -> VectorSelector:
    """The selector of the info series that `info(v, {…})` needs, at the times at which `v` reads its samples.

    A planner that replaces `v` by a leaf also makes the second argument a leaf, for `timestamp` of this selector.
    """
    info_argument = bare(call.args[1]) if len(call.args) > 1 else None
    if isinstance(info_argument, Call) and info_argument.func == "timestamp":
        info_argument = bare(info_argument.args[0])
        assert isinstance(info_argument, VectorSelector)
        return info_argument
    matchers = info_argument.matchers if isinstance(info_argument, VectorSelector) else ()
    names = [matcher for matcher in matchers if matcher.name == METRIC_NAME]
    if not names:
        matchers = (DEFAULT_NAME, *matchers)
    elif not any(matcher.op in ("=", "=~") for matcher in names):
        matchers = (ANY_INFO, *matchers)
    selector = VectorSelector(None, matchers, span=call.span)
    for node in reversed(_path_to_selector(call.args[0])):
        # From the innermost node outwards: an inner `@` overrides outer shifts; otherwise offsets add up.
        if selector.at is None:
            selector = replace(selector, at=node.at, offset=resolved(selector.offset) + resolved(node.offset))
    return selector


def _path_to_selector(expr: Expr) -> list[VectorSelector | Subquery]:
    """The nodes that shift time on the path to the first selector, outermost first."""
    match expr:
        case VectorSelector():
            return [expr]
        case MatrixSelector():
            return [expr.vector]
        case Subquery():
            return [expr, *_path_to_selector(expr.expr)]
        case Paren() | Unary() | Aggregate() | Remote():
            return _path_to_selector(expr.expr)
        case Binary():
            return _path_to_selector(expr.lhs) or _path_to_selector(expr.rhs)
        case Call():
            return next((path for path in map(_path_to_selector, expr.args) if path), [])
        case _:
            return []


@dataclass(frozen=True, slots=True)
class _Condition:
    """The selector's matchers: those of the info metrics' names, and those of the labels to add (none: all labels)."""

    names: tuple[Matcher, ...]
    data: tuple[Matcher, ...]

    def are_info_names(self, names: Sequence[bytes], check: Callable[[], None]) -> Bool:
        """bool[n]: which of these metric names are those of info metrics."""
        are_matching = np.array([bool(name) for name in names], dtype=np.bool_)
        for matcher in self.names:
            are_matching &= _matching(matcher, names, check)
        return are_matching

    def wants(self, label: str) -> bool:
        if label == METRIC_NAME or label in IDENTIFYING:
            return False
        return not self.data or any(matcher.name == label for matcher in self.data)

    @property
    def optional(self) -> bool:
        """Whether a series without any info series is kept."""
        return all(matches_empty(matcher) for matcher in self.data)


def _matching(matcher: Matcher, texts: Sequence[bytes], check: Callable[[], None]) -> Bool:
    if matcher.op in ("=", "!="):
        value = matcher.value.encode()
        return np.array([(text == value) == (matcher.op == "=") for text in texts], dtype=np.bool_)
    return Regex(matcher.value).matching(texts, check) == (matcher.op == "=~")


def _info(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    base, selector = vector(call, args), info_selector(call)
    times = _sample_times(call, selector, grid, context)
    condition = _Condition(
        tuple(matcher for matcher in selector.matchers if matcher.name == METRIC_NAME),
        tuple(matcher for matcher in selector.matchers if matcher.name != METRIC_NAME),
    )
    codes, inverse = np.unique(base.labels.column(METRIC_NAME), return_inverse=True)
    names = base.labels.symbols.encoded(codes)
    is_info = condition.are_info_names(names, context.check)[inverse]
    parts = [take(base, np.flatnonzero(is_info))]
    plain = take(base, np.flatnonzero(~is_info))
    if plain.labels.size:
        parts += _Join(plain, times, condition, context).parts(context)
    return united(stack(parts))


def _sample_times(call: Call, selector: VectorSelector, grid: Grid, context: EvalContext) -> Matrix:
    """The info series with the timestamps of their samples, in seconds, as values: from the source, or from the
    planner's leaf."""
    leaf = call.args[1] if len(call.args) > 1 else None
    times = context.remote[leaf.index] if isinstance(leaf, Remote) else None
    if times is None:
        times = scan.sample_times(scan.INFO_TIMES, selector, grid, context)
    if not isinstance(times, Matrix):
        raise Internal("the leaf for the info series of info() is not an instant vector")
    return times


class _Join:
    """Joins series with info series: decides which info series belongs to which series at which step.

    Series with equal identifying labels have the same identity. `needed`: bool[identities, steps], where a series needs
    info series; those of other cells are not checked. `winners[f]`: int64[identities, steps], the row of the info
    series of the f-th info metric that matches, or NONE.

    Raises NotExecutable if needed info series are histograms or cannot be distinguished.
    """

    def __init__(self, base: Matrix, info: Matrix, condition: _Condition, context: EvalContext) -> None:
        self._base, self._info, self._condition = base, without_empty(info), condition
        labels = (base.labels, self._info.labels)
        columns = [np.concatenate([frame.column(name) for frame in labels]) for name in IDENTIFYING]
        ids, first = row_ids(columns, base.labels.size + self._info.labels.size)
        self._identity, info_identity = ids[: base.labels.size], ids[base.labels.size :]
        # Series without identifying labels belong to no info series.
        identified = np.any([column[first] != 0 for column in columns], axis=0)
        self._needed = (presence_counts(base.present, self._identity, len(first)) > 0) & identified[:, np.newaxis]
        if (self._info.present & np.isnan(self._info.values) & self._needed[info_identity]).any():
            raise NotExecutable("info metrics must be floats, but info() selects one that has native histograms")
        info_names = self._info.labels.column(METRIC_NAME)
        self._winners = [
            self._newest(
                np.flatnonzero((info_names == name) & identified[info_identity]), info_identity, len(first), context
            )
            for name in np.unique(info_names)
        ] or [np.full((len(first), base.present.shape[1]), NONE, dtype=np.int64)]

    def _newest(self, rows: Rows, identity: Rows, identities: int, context: EvalContext) -> Rows:
        """int64[identities, steps]: the rows with the newest samples of one info metric. Checks the deadline, as there
        are as many layers as an identity has info series."""
        info = self._info
        winners = np.full((identities, info.present.shape[1]), NONE, dtype=np.int64)
        order = rows[np.argsort(identity[rows], kind="stable")]
        layer = layers(identity[order])
        for k in range(int(layer.max()) + 1 if len(layer) else 0):
            context.check()
            layer_rows = order[layer == k]
            newest = winners[identity[layer_rows]]
            at = np.arange(newest.shape[1])
            has_both = info.present[layer_rows] & (newest != NONE)
            times, newest_times = info.values[layer_rows], info.values[newest, at]
            equal = has_both & (times == newest_times) & self._needed[identity[layer_rows]]
            if equal.any():
                row, step = (int(i[0]) for i in np.nonzero(equal))
                self._refuse((int(newest[row, step]), int(layer_rows[row])), times[row, step])
            newer = info.present[layer_rows] & (~has_both | (times > newest_times))
            winners[identity[layer_rows]] = np.where(newer, layer_rows[:, np.newaxis], newest)
        return winners

    def _refuse(self, rows: tuple[int, int], time_s: float) -> None:
        first, second = (label_text(self._info.labels, row) for row in rows)
        at = f"@ {round(time_s * 1000)}"
        raise NotExecutable(f"found duplicate series for info metric: existing {first} {at}, new {second} {at}")

    def parts(self, context: EvalContext) -> Iterator[Matrix]:
        """The series with their new labels.

        An identity has the same combination of info series at most steps, and another one after one of them changes.
        The k-th combinations of all identities form one part.
        """
        identities, steps = self._winners[0].shape
        constant = np.all([(plane == plane[:, :1]).all(axis=1) for plane in self._winners], axis=0)
        combination = np.repeat(np.arange(identities), steps).reshape(identities, steps)
        yield self._part(combination, np.flatnonzero(constant) * steps)
        varying = np.flatnonzero(~constant)
        owner = np.repeat(varying, steps)
        columns = [cells.astype(np.int32) for cells in (owner, *(plane[varying].ravel() for plane in self._winners))]
        ids, first = row_ids(columns, len(owner))
        combination[varying] = identities + ids.reshape(len(varying), steps)
        cells = owner[first] * steps + first % steps
        layer = layers(owner[first])
        for k in range(int(layer.max()) + 1 if len(layer) else 0):
            context.check()
            yield self._part(combination, cells[layer == k])

    def _part(self, combination: Rows, cells: Rows) -> Matrix:
        """The series whose identities have one of the combinations at `cells`, present at the steps that have it."""
        identities, steps = combination.shape
        cell_of = np.full(identities, NONE, dtype=np.int64)
        cell_of[cells // steps] = cells
        rows = np.flatnonzero(cell_of[self._identity] != NONE)
        identity = self._identity[rows]
        cell = cell_of[identity]
        part = take(self._base, rows)
        part.present &= combination[identity] == combination.ravel()[cell][:, np.newaxis]
        fitting = [plane.ravel()[cell] for plane in self._winners]
        if not self._condition.optional:
            part.present &= np.any([info_rows != NONE for info_rows in fitting], axis=0)[:, np.newaxis]
        seen = part.present.any(axis=1)
        return self._labelled(without_empty(part), [info_rows[seen] for info_rows in fitting])

    def _labelled(self, part: Matrix, fitting: Sequence[Rows]) -> Matrix:
        """Add the labels of the info series `fitting` (int64[series] each, or NONE) that a series does not have yet.

        Raises NotExecutable if two info metrics disagree.
        """
        if not self._info.labels.size:
            return part
        labels = part.labels
        for name in filter(self._condition.wants, self._info.labels.columns):
            base_codes = labels.column(name)
            added = np.zeros(labels.size, dtype=np.int32)
            for info_rows in fitting:
                codes = np.where(info_rows != NONE, self._info.labels.columns[name][info_rows], np.int32(0))
                if ((base_codes == 0) & (added != 0) & (codes != 0) & (added != codes)).any():
                    raise NotExecutable(f"conflicting label: {name}")
                added = np.where(codes != 0, codes, added)
            labels = labels.with_column(name, np.where(base_codes != 0, base_codes, added))
        return Matrix(labels, part.values, part.present, part.drop_name, part.histograms)


FUNCTIONS: dict[str, Function] = {"info": _info}
