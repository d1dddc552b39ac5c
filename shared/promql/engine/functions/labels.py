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
from shared.promql.regex import Regex

_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
_NUMBER = re.compile("0|[1-9][0-9]*")

Template = list[bytes | int]
"""Literal texts as UTF-8, and numbers of groups."""

SHOWN_MAX = 80
"""Characters of an expression that an error repeats."""
REPLACEMENT_MAX = 4 << 10
"""Characters of a replacement: 2,048 references to groups, which take 2 ms a value."""
JOINED_AT_ONCE = 1024
"""Values that are joined between two checks of the deadline."""
LABEL_BYTES_MAX = 1 << 20
"""The longest value that a call may make. Without a limit, `$1$1` in a few nested calls would fill any memory."""
LABELS_BYTES_MAX = 64 << 20
"""All values that one call may make, together. The account of a query's memory covers those of all its calls."""


def _template(replacement: str, names: dict[str, int], groups: int) -> Template:
    """The parts of a replacement: `$1`, `${1}`, `$name` and `${name}` refer to groups, `$$` is a dollar, any other `$`
    stands for itself. Digits with a leading 0 are a name, as in Go."""
    parts: list[bytes | int | None] = []
    at = 0
    for reference in _REFERENCE.finditer(replacement):
        parts.append(replacement[at : reference.start()].encode())
        at = reference.end()
        name = reference[1] or reference[2]
        if name is None:
            parts.append(b"$")
        elif _NUMBER.fullmatch(name):
            parts.append(int(name) if len(name) < 9 and int(name) <= groups else None)
        else:
            parts.append(names.get(name))
    parts.append(replacement[at:].encode())
    return [part for part in parts if part is not None and part != b""]  # a group that does not exist is empty


class _Values:
    """The label values that a call makes, within its bounds."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._bytes_made = 0

    def reserve(self, size: int) -> None:
        """Announce a value of `size` bytes. Raises NotExecutable if it is too long, or if the total is too large."""
        self._bytes_made += size
        if size > LABEL_BYTES_MAX:
            raise NotExecutable(
                f"{self._function}() makes a label value of {size} bytes; at most {LABEL_BYTES_MAX} are allowed"
            )
        if self._bytes_made > LABELS_BYTES_MAX:
            raise NotExecutable(
                f"{self._function}() makes label values of more than {LABELS_BYTES_MAX} bytes together; "
                "apply it to fewer series or make shorter values"
            )

    def expanded(self, template: Template, match: re2._Match) -> str:
        sizes = (len(part) if isinstance(part, bytes) else match.end(part) - match.start(part) for part in template)
        self.reserve(sum(sizes))
        text = b"".join(part if isinstance(part, bytes) else match[part] or b"" for part in template)
        return text.decode(errors="replace")  # `\C` may match a part of a character


def _label_replace(call: Call, args: list[Value], grid: Grid, context: EvalContext) -> Value:
    """Set a label to the expanded replacement where the expression matches the value of another label."""
    matrix = vector(call, args)
    target, replacement, source, expression = (text(call, args, i) for i in range(1, 5))
    try:
        pattern = Regex(expression, captures=True)
    except ValueError as error:
        clipped = expression if len(expression) <= SHOWN_MAX else expression[:SHOWN_MAX] + "…"
        raise NotExecutable(f"invalid regular expression in label_replace(): {clipped}: {error}") from error
    _require_label_name(target, "destination", "label_replace")
    if len(replacement) > REPLACEMENT_MAX:
        raise NotExecutable(
            f"label_replace() has a replacement of {len(replacement)} characters; at most {REPLACEMENT_MAX} are allowed"
        )
    template = _template(replacement, pattern.group_numbers, pattern.groups)
    symbols = matrix.labels.symbols
    codes, inverse = np.unique(matrix.labels.column(source), return_inverse=True)
    replaced = np.zeros(len(codes), dtype=np.int32)
    matched = np.zeros(len(codes), dtype=np.bool_)
    values = _Values("label_replace")
    for i, match in enumerate(pattern.captured(symbols.encoded(codes), context.check)):
        if match is not None:
            matched[i] = True
            replaced[i] = symbols.code_of_made(values.expanded(template, match))
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
    values = _Values("label_join")
    joined = np.empty(len(first), dtype=np.int32)
    for start in range(0, len(first), JOINED_AT_ONCE):
        context.check()
        rows = first[start : start + JOINED_AT_ONCE]
        texts = zip(*(symbols.texts(column[rows]) for column in columns), strict=True) if columns else [()] * len(rows)
        for i, parts in enumerate(texts, start):
            values.reserve(sum(map(len, parts)) + len(separator) * max(len(parts) - 1, 0))
            joined[i] = symbols.code_of_made(separator.join(parts))
    return _relabelled(matrix, target, joined[ids], np.ones(matrix.labels.size, dtype=np.bool_))


def _relabelled(matrix: Matrix, target: str, column: np.ndarray, changed: Bool) -> Matrix:
    """The matrix with `column` as the label `target` (`changed`: bool[n], which series got a new value). A metric name
    that was set is not dropped. Raises NotExecutable if two series become equal and have a step in common."""
    drop_name = matrix.drop_name & ~changed if target == METRIC_NAME else matrix.drop_name
    labels = matrix.labels.with_column(target, column.astype(np.int32))
    return united(Matrix(labels, matrix.values, matrix.present, drop_name, matrix.histograms))


def _require_label_name(name: str, role: str, function: str) -> None:
    if not is_label_name(name):
        raise NotExecutable(f"invalid {role} label name in {function}(): {name!r}")


FUNCTIONS: dict[str, Function] = {"label_replace": _label_replace, "label_join": _label_join}
