"""The types of kernels' arguments and results, under numba's names but without numba, which only compiling needs.

Importing numba costs a process 0.3 s and 26 MB, so processes that only call compiled kernels avoid it. The types are
described at https://numba.readthedocs.io/en/stable/reference/types.html.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

_FIRST_CODE = 1 << 20
"""The numbers of numba's own types are lower."""
_codes: dict[Type, int] = {}
_NUMBA_CODES = {
    "uint8": 19, "uint16": 20, "uint32": 21, "uint64": 22, "int8": 23, "int16": 24, "int32": 25, "int64": 26,
    "float32": 27, "float64": 28, "complex64": 30, "complex128": 31,
}  # fmt: skip
"""The numbers of scalars. They are numba's: a process may import numba later, to compile a missing kernel."""


@dataclass(frozen=True)
class Type:
    """A type. Types compare by value. `type[::1]` and so on are arrays of the type, as in numba."""

    @cached_property
    def _code(self) -> int:
        """The number by which numba's C code knows the type."""
        return _codes.setdefault(self, _FIRST_CODE + len(_codes))

    def __getitem__(self, dimensions: slice | tuple[slice, ...]) -> Array:
        slices = dimensions if isinstance(dimensions, tuple) else (dimensions,)
        is_contiguous = [each.step == 1 for each in slices]
        layout = "C" if is_contiguous[-1] else "F" if is_contiguous[0] else "A"
        return Array(self, len(slices), layout)

    def __call__(self, *args: Type) -> Signature:
        """The signature of a kernel that returns this type."""
        return Signature(self, args)


@dataclass(frozen=True)
class Scalar(Type):
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Record(Type):
    """An element of an array whose dtype has fields."""

    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"record({self.dtype})"


@dataclass(frozen=True)
class Array(Type):
    """`layout`: C or F for contiguous arrays with the last or the first index varying fastest, A for any."""

    dtype: Type
    ndim: int
    layout: str
    readonly: bool = False
    aligned: bool = True

    def __str__(self) -> str:
        kind = ", readonly" * self.readonly + ", not aligned" * (not self.aligned)
        return f"array({self.dtype}, {self.ndim}d, {self.layout}{kind})"


@dataclass(frozen=True)
class Tuple(Type):
    types: tuple[Type, ...]

    def __init__(self, types: Iterable[Type]) -> None:
        object.__setattr__(self, "types", tuple(types))

    def __str__(self) -> str:
        return listed(self.types)


@dataclass(frozen=True)
class NamedTuple(Tuple):
    instance_class: type

    def __init__(self, types: Iterable[Type], instance_class: type) -> None:
        super().__init__(types)
        object.__setattr__(self, "instance_class", instance_class)

    def __str__(self) -> str:
        return self.instance_class.__name__ + super().__str__()


def UniTuple(dtype: Type, count: int) -> Tuple:
    return Tuple([dtype] * count)


def NamedUniTuple(dtype: Type, count: int, instance_class: type) -> NamedTuple:
    return NamedTuple([dtype] * count, instance_class)


@dataclass(frozen=True)
class Signature:
    result: Type
    args: tuple[Type, ...]


@dataclass(frozen=True)
class ExternalFunction:
    """A C function that kernels call by its name."""

    name: str
    signature: Signature


void, boolean, voidptr = Scalar("void"), Scalar("boolean"), Scalar("voidptr")
int8, int16, int32, int64 = Scalar("int8"), Scalar("int16"), Scalar("int32"), Scalar("int64")
uint8, uint16, uint32, uint64 = Scalar("uint8"), Scalar("uint16"), Scalar("uint32"), Scalar("uint64")
float32, float64 = Scalar("float32"), Scalar("float64")
intp, uintp = int64, uint64
none, pyobject = Scalar("none"), Scalar("pyobject")
NUMBERS = frozenset([boolean, int8, int16, int32, int64, uint8, uint16, uint32, uint64, float32, float64])

_codes.update((Scalar(name), code) for name, code in _NUMBA_CODES.items())
_by_dtype: dict[np.dtype[Any], Type] = {
    np.dtype("bool" if number is boolean else number.name): number for number in NUMBERS
}


def listed(types: Iterable[Type]) -> str:
    return f"({', '.join(map(str, types))})"


def scalar_codes() -> dict[str, int]:
    """Scalar → its number, for the initialisation of numba's C code."""
    return dict(_NUMBA_CODES)


def of_dtype(dtype: np.dtype[Any]) -> Type:
    """The type of an element; `pyobject` if no kernel accepts it."""
    element_type = _by_dtype.get(dtype)
    if element_type is None:
        element_type = Record(dtype) if dtype.fields else pyobject
    return element_type


def of_value(value: Any) -> Type:
    """The type of an argument; `pyobject` if no kernel accepts it."""
    match value:
        case np.ndarray():
            flags = value.flags
            layout = "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"
            # As in numba, unaligned arrays of numbers count as aligned.
            return Array(of_dtype(value.dtype), value.ndim, layout, not flags.writeable)
        case bool():
            return boolean
        case np.generic():
            return of_dtype(value.dtype)
        case int():
            return int64 if value < 1 << 63 else uint64
        case float():
            return float64
        case tuple():
            types = [of_value(each) for each in value]
            return NamedTuple(types, type(value)) if hasattr(value, "_fields") else Tuple(types)
        case None:
            return none
    return pyobject


def is_convertible(given: Type, wanted: Type) -> bool:
    """Whether an argument of type `given` is accepted where `wanted` is declared. Numbers are converted; an array is
    accepted if its type guarantees everything that the declared type does."""
    if given == wanted:
        return given != pyobject
    match given, wanted:
        case Scalar(), Scalar():
            return given in NUMBERS and wanted in NUMBERS
        case Array(), Array():
            return (
                (given.dtype, given.ndim) == (wanted.dtype, wanted.ndim)
                and wanted.layout in ("A", given.layout)
                and (wanted.readonly or not given.readonly)
                and (given.aligned or not wanted.aligned)
            )
        case Tuple(), Tuple():
            return getattr(given, "instance_class", None) == getattr(wanted, "instance_class", None) and (
                are_convertible(given.types, wanted.types)
            )
    return False


def are_convertible(given: Sequence[Type], wanted: Sequence[Type]) -> bool:
    return len(given) == len(wanted) and all(map(is_convertible, given, wanted))
