"""Results as tables of pandas, polars or Arrow. Each of these libraries is needed only where its method is called."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Column = Union[NDArray[Any], list[Any]]
EXACT_INTEGER_MAX = 1 << 53
"""Up to this number, float64 represents all integers."""


class Table:
    """A result that has columns of one length. A column of a matrix, float32[rows, n], has a vector in each row."""

    def columns(self) -> dict[str, Column]:
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Needs pandas. Vectors stand in a column of arrays."""
        library = required("pandas", "pandas")
        return library.DataFrame({name: _pandas_column(library, column) for name, column in self.columns().items()})

    def to_polars(self) -> polars.DataFrame:
        """Needs polars. Values of several types in one attribute become text."""
        library = required("polars", "polars")
        return library.DataFrame(
            {name: _uniform(column) if isinstance(column, list) else column for name, column in self.columns().items()}
        )

    def to_arrow(self) -> pyarrow.Table:
        """Needs pyarrow. Values of several types in one attribute become text."""
        library = required("pyarrow", "arrow")
        return library.table({name: _arrow_column(library, column) for name, column in self.columns().items()})


def column_names(names: Collection[str], reserved: Collection[str], prefix: str) -> dict[str, str]:
    """Name → its column. A reserved name gets the prefix before it, as often as it takes to get a name that no other
    column has."""
    used_names = {*names, *reserved}
    columns = {}
    for name in names:
        column = name
        while column in reserved or (column != name and column in used_names):
            column = prefix + column
        used_names.add(column)
        columns[name] = column
    return columns


def required(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'triptych-client[{extra}]'") from error


def _is_matrix(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 2


def _pandas_column(library: Any, column: Column) -> Any:
    if isinstance(column, list) and _has_large_integer(column) and not all(type(value) is int for value in column):
        return library.Series(column, dtype=object)  # pandas would make them float64
    return list(column) if _is_matrix(column) else column


def _arrow_column(library: Any, column: Column) -> Any:
    if isinstance(column, list):
        return library.array(_uniform(column))
    if _is_matrix(column):
        flat = library.array(np.ascontiguousarray(column).reshape(-1))
        return library.FixedSizeListArray.from_arrays(flat, column.shape[1])
    return library.array(column)


def _uniform(values: Sequence[Any]) -> list[Any]:
    """The values, if one type holds all of them unchanged; else JSON texts, in which a text stays as it is."""
    kinds = {_kind(value) for value in values if value is not None}
    if kinds == {"int", "float"} and not _has_large_integer(values):
        return [None if value is None else float(value) for value in values]
    if kinds == {"list[int]", "list[float]"} and not any(_has_large_integer(value or ()) for value in values):
        return [None if value is None else [float(element) for element in value] for value in values]
    are_lists = all(kind.startswith("list") for kind in kinds)
    if len(kinds - {"list[]"}) <= 1 and ("list[]" not in kinds or are_lists) and "list[float,int]" not in kinds:
        return list(values)
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _kind(value: Any) -> str:
    if not isinstance(value, list):
        return type(value).__name__
    kinds = {type(element).__name__ for element in value}
    exact = kinds == {"int", "float"} and not _has_large_integer(value)
    return f"list[{'float' if exact else ','.join(sorted(kinds))}]"


def _has_large_integer(values: Sequence[Any]) -> bool:
    """Whether there is one that float64 may round."""
    return any(type(value) is int and abs(value) > EXACT_INTEGER_MAX for value in values)
