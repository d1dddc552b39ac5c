"""Results as tables of pandas, polars or Arrow. Each of these libraries is needed only where its method is called."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Column = Union[NDArray[Any], list[Any]]


class Table:
    """A result that has columns of one length. A column of a matrix, float32[rows, n], has a vector in each row."""

    def columns(self) -> dict[str, Column]:
        raise NotImplementedError

    def to_pandas(self) -> pandas.DataFrame:
        """Needs pandas. Vectors stand in a column of arrays."""
        library = required("pandas", "pandas")
        columns = {name: list(column) if _is_matrix(column) else column for name, column in self.columns().items()}
        return library.DataFrame(columns)

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


def required(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"this needs {module}: pip install 'triptych-client[{extra}]'") from error


def _is_matrix(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.ndim == 2


def _arrow_column(library: Any, column: Column) -> Any:
    if isinstance(column, list):
        return library.array(_uniform(column))
    if _is_matrix(column):
        flat = library.array(np.ascontiguousarray(column).reshape(-1))
        return library.FixedSizeListArray.from_arrays(flat, column.shape[1])
    return library.array(column)


def _uniform(values: Sequence[Any]) -> list[Any]:
    """The values, if one type holds all of them; else as JSON texts, in which a text stays as it is."""
    kinds = {_kind(value) for value in values if value is not None}
    if kinds == {"int", "float"}:
        return [None if value is None else float(value) for value in values]
    if kinds == {"list[int]", "list[float]"}:
        return [None if value is None else [float(element) for element in value] for value in values]
    if len(kinds - {"list[]"}) <= 1 and ("list[]" not in kinds or all(kind.startswith("list") for kind in kinds)):
        return list(values)
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]


def _kind(value: Any) -> str:
    if not isinstance(value, list):
        return type(value).__name__
    kinds = {type(element).__name__ for element in value}
    kind = "float" if kinds == {"int", "float"} else ",".join(sorted(kinds))
    return f"list[{kind}]"
