"""Calls machine code from Python. numba's C extension modules check the types of the arguments; the rest of numba is
needed only for compiling.

The modules are loaded under their own names, so that numba finds them if it is imported later.
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
"""In the order of their dependencies."""
_DIGEST_BYTES = 20
"""The size of a SHA-1."""


class _Omitted:
    """The type of an omitted argument, which no kernel accepts."""


def directory_of(package: str) -> Path:
    """Where the package is installed. Raises ImportError."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{package} is not installed; install Triptych with its dependencies")
    return Path(spec.submodule_search_locations[0])


def _load_extensions() -> list[Any]:
    if "numba" in sys.modules:
        return [importlib.import_module(f"numba.{name}") for name in _EXTENSIONS]
    package = ModuleType("numba")
    directory = directory_of("numba")
    sys.modules["numba"] = package  # _dispatcher imports _devicearray from it
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
    """Make numba's C code use `_unpickled`. Machine code holds as pickles the named tuples that it returns and the
    exceptions that it raises. numba's C code looks up the function that reads them once, at its first call, in a module
    that imports all of numba, which takes seconds on a cold disk."""
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
    """The object in a pickle. The data at an address never changes, so the address identifies it in the cache."""
    return pickle.loads(data)


_, _dynfunc, _helperlib, _typeconv, _nrt_python, _dispatcher = _load_extensions()
_dispatcher.typeof_init(_Omitted, kernel_types.scalar_codes())
_Dispatcher: Any = _dispatcher.Dispatcher
_types = _typeconv.new_type_manager()
_SAFE = ord("s")


class CompiledCall(_Dispatcher):  # type: ignore[misc]
    """Calls machine code with arguments of the types in its signature, or of types that can be converted to them.

    Raises TypeError for other types. numba's C code remembers the types that it has seen and calls the methods here
    only for new ones.
    """

    def __init__(self, function: Callable[..., Any], signature: Signature, entry_point: Any) -> None:
        names = function.__code__.co_varnames[: function.__code__.co_argcount]
        manager = _typeconv.get_pointer(_types)
        super().__init__(manager, len(names), True, names, (), False, False, False)
        self.signature = signature
        self._name = function.__name__
        self._entry_point = entry_point  # numba's C code holds no reference to it
        self._insert([each._code for each in signature.args], entry_point, False)
        self._can_compile = False

    def typeof_pyval(self, value: Any) -> Type:
        return kernel_types.of_value(value)

    def _search_new_conversions(self, *args: Any) -> bool:
        argument_types, declared_types = [kernel_types.of_value(value) for value in args], self.signature.args
        if not kernel_types.are_convertible(argument_types, declared_types):
            return False
        for value, argument_type, declared_type in zip(args, argument_types, declared_types, strict=True):
            for code in _codes(value, argument_type) - {declared_type._code}:
                _typeconv.set_compatible(_types, code, declared_type._code, _SAFE)
        return True

    def _explain_matching_error(self, *args: Any) -> None:
        argument_types = kernel_types.listed(map(kernel_types.of_value, args))
        raise TypeError(
            f"{self._name} takes arguments of the types {kernel_types.listed(self.signature.args)}: {argument_types}"
        )


def _codes(value: Any, value_type: Type) -> set[int]:
    """The numbers under which numba's C code may know the value's type. If numba is imported and one of its own
    functions saw the type first, it is numba's number."""
    if "numba.core" not in sys.modules:
        return {value_type._code}
    return {value_type._code, importlib.import_module("numba").typeof(value)._code}


def environment(module: str, constants: list[Any]) -> Any:
    """The object through which a function's code finds its globals and constants."""
    created = _dynfunc.Environment(vars(_module(module)))
    created.consts.extend(constants)
    return created


def entry_point(function: Callable[..., Any], address: int, environment: Any) -> Any:
    """A callable for the machine code of the function at this address."""
    return _dynfunc.make_function(_module(function.__module__), function.__name__, "", address, environment, ())


def _module(name: str) -> ModuleType:
    """The module, or an empty one if it is not imported: compiled code already has what it needs."""
    return sys.modules.get(name) or ModuleType(name)


@cache
def address_of(symbol: str) -> int:
    """The address of a symbol in machine code: a function of numba's runtime, of C or of Python, or an object such as
    an exception. Raises LookupError."""
    addresses = _addresses()
    if symbol in addresses:
        return addresses[symbol]
    for library in (ctypes.CDLL(None), ctypes.pythonapi):
        try:
            return ctypes.addressof(ctypes.c_char.in_dll(library, symbol))
        except ValueError:
            continue
    raise LookupError(f"no function is named {symbol}")


@cache
def _addresses() -> dict[str, int]:
    """Symbol, as numba names it → address."""
    addresses = {"_Py_NoneStruct": id(None)}
    for name, address in _helperlib.c_helpers.items():
        addresses[f"numba_{name}"] = address
    for name, address in _nrt_python.c_helpers.items():
        addresses[name if name.startswith("_") else f"NRT_{name}"] = address
    for value in vars(builtins).values():
        if isinstance(value, type) and issubclass(value, BaseException):
            addresses[f"PyExc_{value.__name__}"] = id(value)
    return addresses
