"""`label_replace` and `label_join`: each distinct label value, or combination of values, is processed once.

Semantics: https://prometheus.io/docs/prometheus/latest/querying/functions/. Regular expressions are RE2 and match the
whole value; the syntax of replacements is that of Go's Regexp.Expand.
"""

from __future__ import annotations

import re

import numpy as np
import re2

from shared.errors import NotExecutable
from shared.labels import METRIC_NAME, row_ids
from shared.promql.ast import Call
from shared.promql.engine.aggregation_parameters import is_label_name
from shared.promql.engine.context import EvalContext
from shared.promql.engine.functions.arguments import Function, text, vector
from shared.promql.engine.rows import united
from shared.promql.model import Bool, Grid, Matrix, Value

_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")

Template = list[str | int | None]
"""Literal texts, and the numbers of groups; None stands for a group that does not exist."""

GROUPS_MAX = 200
"""Groups of an expression, at most: the time that RE2 takes to fill them grows with their number times the length of
the text."""


def _template(replacement: str, names: dict[str, int], groups: int) -> Template:
    """Parse a replacement: `$1`, `${1}`, `$name` and `${name}` refer to groups, `$$` is a dollar, and any other `$`
    stands for itself."""
    parts: Template = []
    at = 0
    for reference in _REFERENCE.finditer(replacement):
        parts.append(replacement[at : reference.start()])
        at = reference.end()
        name = reference[1] or reference[2]
        if name is None:
            parts.append("$")
        elif name.isascii() and name.isdigit():
            parts.append(int(name) if len(name) < 9 and int(name) <= groups else None)
        else:
            parts.append(names.get(name))
    parts.append(replacement[at:])
    return parts


def _expand(template: Template, match: re2._Match) -> str:
    return "".join(part if isinstance(part, str) else (match[part] or "") for part in template if part is not None)


def _label_replace(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Set a label to the expanded replacement where the expression matches the value of another label."""
    matrix = vector(call, args)
    target, replacement, source, expression = (text(call, args, i) for i in range(1, 5))
    try:
        pattern = re2.compile(f"(?s:{expression})")
    except re2.error as error:
        raise NotExecutable(f"invalid regular expression in label_replace(): {expression}: {error}") from error
    if pattern.groups > GROUPS_MAX:
        raise NotExecutable(
            f"label_replace() has an expression with {pattern.groups} groups, at most {GROUPS_MAX} are allowed"
        )
    _require_label_name(target, "destination", "label_replace")
    template = _template(replacement, dict(pattern.groupindex), pattern.groups)
    symbols = matrix.labels.symbols
    codes, inverse = np.unique(matrix.labels.column(source), return_inverse=True)
    replaced = np.zeros(len(codes), dtype=np.int32)
    matched = np.zeros(len(codes), dtype=np.bool_)
    for i, value in enumerate(symbols.texts(codes)):
        match = pattern.fullmatch(value)
        if match is not None:
            matched[i] = True
            replaced[i] = symbols.code(_expand(template, match))
    changed = matched[inverse]
    column = np.where(changed, replaced[inverse], matrix.labels.column(target))
    return _relabelled(matrix, target, column, changed)


def _label_join(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Set a label to the values of others, joined."""
    matrix = vector(call, args)
    target, separator, *sources = (text(call, args, i) for i in range(1, len(args)))
    for source in sources:
        _require_label_name(source, "source", "label_join")
    _require_label_name(target, "destination", "label_join")
    columns = [matrix.labels.column(source) for source in sources]
    ids, first = row_ids(columns, matrix.labels.size)
    symbols = matrix.labels.symbols
    texts = zip(*(symbols.texts(column[first]) for column in columns), strict=True) if columns else [()] * len(first)
    joined = np.array([symbols.code(separator.join(values)) for values in texts], dtype=np.int32)
    return _relabelled(matrix, target, joined[ids], np.ones(matrix.labels.size, dtype=np.bool_))


def _relabelled(matrix: Matrix, target: str, column: np.ndarray, changed: Bool) -> Matrix:
    """The matrix with `column` as the label `target` (`changed`: bool[n], which series got a new value). A metric name
    that was set is not dropped. Raises NotExecutable if two series become equal and have a step in common."""
    drop_name = matrix.drop_name & ~changed if target == METRIC_NAME else matrix.drop_name
    labels = matrix.labels.with_column(target, column.astype(np.int32))
    return united(Matrix(labels, matrix.values, matrix.present, drop_name))


def _require_label_name(name: str, role: str, function: str) -> None:
    if not is_label_name(name):
        raise NotExecutable(f"invalid {role} label name in {function}(): {name!r}")


FUNCTIONS: dict[str, Function] = {"label_replace": _label_replace, "label_join": _label_join}
