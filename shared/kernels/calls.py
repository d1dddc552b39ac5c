"""Calls of machine code by Python: numba's own extension modules in C check the types of the arguments, without the
rest of numba, which compiling alone needs.

They are loaded under their own names, so that numba finds them if it is imported later.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib
import pickle
import sys
from collections.abc import Callable
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from shared.kernels import types as kernel_types
from shared.kernels.types import Signature, Type

_EXTENSIONS = (
    "_devicearray", "_dynfunc", "_helperlib", "core.typeconv._typeconv", "core.runtime._nrt_python", "_dispatcher",
)  # fmt: skip
"""In the order in which they need each other."""
_DIGEST_BYTES = 20
"""Of a SHA-1."""


class _Omitted:
    """Stands for the arguments that a call leaves out, which no kernel allows."""


def directory_of(package: str) -> Path:
    """Where the package is installed. Raises ImportError."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"{package} is not installed; install Triptych with its dependencies")
    return Path(found.submodule_search_locations[0])


def _load_extensions() -> list[Any]:
    if "numba" in sys.modules:
        return [importlib.import_module(f"numba.{name}") for name in _EXTENSIONS]
    package = ModuleType("numba")
    directory = directory_of("numba")
    sys.modules["numba"] = package  # which _dispatcher asks for _devicearray
    try:
        extensions = [_load_extension(package, directory, name) for name in _EXTENSIONS]
        _unpickle_without_numba(sys.modules["numba._helperlib"])
        return extensions
    finally:
        del sys.modules["numba"]


def _load_extension(package: ModuleType, directory: Path, name: str) -> ModuleType:
    base = directory.joinpath(*name.split("."))
    path = next(path for suffix in EXTENSION_SUFFIXES if (path := base.with_name(base.name + suffix)).exists())
    loader = ExtensionFileLoader(f"numba.{name}", str(path))
    spec = spec_from_file_location(f"numba.{name}", path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    sys.modules[f"numba.{name}"] = module
    if "." not in name:
        setattr(package, name, module)
    return module


def _unpickle_without_numba(helperlib: Any) -> None:
    """Machine code has named tuples that it returns and exceptions that it raises as pickles. numba's C code looks for
    what reads them at its first call only, in a module that comes with all of numba: seconds on a cold disk."""
    stand_in: Any = ModuleType("numba.core.serialize")
    stand_in._numba_unpickle = _unpickled
    sys.modules[stand_in.__name__] = stand_in
    try:
        unpickle = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p)
        data = pickle.dumps(None)
        unpickle(helperlib.c_helpers["unpickle"])(data, len(data), bytes(_DIGEST_BYTES))
    finally:
        del sys.modules[stand_in.__name__]


@cache
def _unpickled(address: int, data: bytes, digest: bytes) -> Any:
    """What the data is, which stands at this address for good."""
    return pickle.loads(data)


_, _dynfunc, _helperlib, _typeconv, _nrt_python, _dispatcher = _load_extensions()
_dispatcher.typeof_init(_Omitted, kernel_types.scalar_codes())
_Dispatcher: Any = _dispatcher.Dispatcher
_types = _typeconv.new_type_manager()
_SAFE = ord("s")


class CompiledCall(_Dispatcher):  # type: ignore[misc]
    """Calls machine code with arguments of the types in its signature, or of others that can be converted.

    Raises TypeError for any others. numba's C code remembers the types that it has met, and calls the methods here for
    new ones only.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, entry_point: Any) -> None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        manager = _typeconv.get_pointer(_types)
        super().__init__(manager, len(names), True, names, (), False, False, False)
        self.signature = signature
        self._name = function.__name__
        self._entry_point = entry_point  # numba's C code takes no reference of its own
        self._insert([each._code for each in signature.args], entry_point, False)
        self._can_compile = False

    def typeof_pyval(self, value: Any) -> Type:
        return kernel_types.of_value(value)

    def _search_new_conversions(self, *args: Any) -> bool:
        given, wanted = [kernel_types.of_value(value) for value in args], self.signature.args
        if not kernel_types.are_convertible(given, wanted):
            return False
        for value, one, other in zip(args, given, wanted, strict=True):
            for code in _codes(value, one) - {other._code}:
                _typeconv.set_compatible(_types, code, other._code, _SAFE)
        return True

    def _explain_matching_error(self, *args: Any) -> None:
        given = kernel_types.listed(map(kernel_types.of_value, args))
        raise TypeError(
            f"{self._name} takes arguments of the types {kernel_types.listed(self.signature.args)}: {given}"
        )


def _codes(value: Any, given: Type) -> set[int]:
    """The numbers by which numba's C code may know the type of the value: if numba is imported and one of its own
    functions met the type first, by that of numba."""
    if "numba.core" not in sys.modules:
        return {given._code}
    return {given._code, importlib.import_module("numba").typeof(value)._code}


def environment(module: str, constants: list[Any]) -> Any:
    """What the code of a function finds its globals and constants by."""
    made = _dynfunc.Environment(vars(_module(module)))
    made.consts.extend(constants)
    return made


def entry_point(function: Callable[..., Any], address: int, environment: Any) -> Any:
    """The function as machine code at this address."""
    return _dynfunc.make_function(_module(function.__module__), function.__name__, "", address, environment, ())


def _module(name: str) -> ModuleType:
    """Compiled code has what it needs of its module; one that is not imported may be empty."""
    return sys.modules.get(name) or ModuleType(name)


@cache
def address_of(symbol: str) -> int:
    """Of what machine code names: a function of numba's runtime, of C or of Python; or an object, such as an exception.
    Raises LookupError."""
    known = _known()
    if symbol in known:
        return known[symbol]
    for library in (ctypes.CDLL(None), ctypes.pythonapi):
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
        except ValueError:
            continue
    raise LookupError(f"no function is named {symbol}")


@cache
def _known() -> dict[str, int]:
    """By the names that numba gives them."""
    known = {"_Py_NoneStruct": id(None)}
    for name, address in _helperlib.c_helpers.items():
        known[f"numba_{name}"] = address
    for name, address in _nrt_python.c_helpers.items():
        known[name if name.startswith("_") else f"NRT_{name}"] = address
    for value in vars(builtins).values():
        if isinstance(value, type) and issubclass(value, BaseException):
            known[f"PyExc_{value.__name__}"] = id(value)
    return known
