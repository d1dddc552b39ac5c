"""Compiles kernels with numba. Only a process that lacks the machine code of a kernel imports this module."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any

from numba import __version__, carray, from_dtype, njit, types
from numba.core import caching, compiler, serialize, sigutils
from numba.core.ccallback import CFunc
from numba.core.registry import cpu_target
from numba.extending import intrinsic, typeof_impl

from shared.kernels import cache as kernel_cache
from shared.kernels import machine_code, object_code
from shared.kernels import types as kernel_types
from shared.kernels.declarations import Declared, Inlined, Intrinsic, NumbaFunction
from shared.kernels.machine_code import MachineCode, ObjectCode
from shared.kernels.types import Signature, Type
from shared.telemetry import event

_compiled: dict[Declared, Any] = {}
"""numba's dispatchers of kernels, with everything that compiling their callers needs."""

_NUMBA_FUNCTIONS = {"carray": carray}
_number_types: Any = types.number_domain
_codes = {str(number): number._code for number in _number_types}
assert _codes == kernel_types.scalar_codes(), f"numba {__version__} gives its types other numbers: {_codes}"


def compile_kernel(kernel: Declared) -> MachineCode | ObjectCode:
    """Compile the kernel into the cache, and also those kernels that it calls and the cache lacks."""
    if not _compiled:
        event(
            logging.INFO,
            "kernels that the cache lacks are compiled, once for this version",
            cache=kernel_cache.directory(),
        )
    cached = _compile(kernel, ignores_cache=True)
    assert cached.code is not None
    return cached.code


def _compile(kernel: Declared, *, ignores_cache: bool) -> _Cache:
    """Compile the kernel for its callers. Unless `ignores_cache`, its types may come from the cache."""
    dispatcher = njit(nogil=True, **kernel.options)(kernel.function)
    dispatcher._cache = cached = _Cache(kernel.name(), is_read=not ignores_cache)
    for called in Intrinsic.all:  # numba registers new ones when it begins to compile
        _intrinsic(called)
    dispatcher.compile(numba_signature(kernel.signature))
    dispatcher.disable_compile()
    _compiled[kernel] = dispatcher
    return cached


def compile_for_c(function: Callable[..., Any], signature: Signature) -> MachineCode | ObjectCode:
    compiled: Any = CFunc(function, sigutils.normalize_signature(numba_signature(signature)), locals={}, options={})
    compiled.compile()
    return _code_of(compiled._library, compiled.native_name, [])


class _Cache(caching.NullCache):  # type: ignore[misc]
    """The cache that numba asks before it compiles a kernel, and to which it saves the result. `name`: of the files;
    None for a kernel that is not cached. `is_read`: whether types in the cache may be used. Types alone, which another
    process may just have written, do not suffice to call the kernel."""

    def __init__(self, name: str | None, *, is_read: bool) -> None:
        self._name = name
        self._is_read = is_read
        self.code: MachineCode | ObjectCode | None = None

    def load_overload(self, signature: Any, context: Any) -> Any:
        data = kernel_cache.read(self._name, "types") if self._name and self._is_read else None
        if data is None:
            return None
        context.refresh()
        return compiler.CompileResult._rebuild(context, *serialize.pickle.loads(data))

    def save_overload(self, signature: Any, result: Any) -> None:
        payload = result._reduce()
        # Called functions without constants need no environment, and loading theirs would import numba.
        environments = [result.environment, *(called for called in payload[-1] if called.consts)]
        self.code = _code_of(result.library, result.fndesc.llvm_cpython_wrapper_name, environments)
        if self._name is not None:
            # In this order: where the code is missing, `compile_kernel` writes both again.
            kernel_cache.write(self._name, "types", serialize.dumps(payload))
            kernel_cache.write(self._name, "code", machine_code.encoded(self.code))


def _code_of(library: Any, symbol: str, environments: list[Any]) -> MachineCode | ObjectCode:
    """The code of a library that numba has compiled (not loaded) in this process."""
    if library.has_dynamic_globals:
        raise ValueError(f"{library.name} has addresses of this process in its code, which no other process can run")
    content, _ = library.serialize_using_object_code()[2]
    described = [(each.env_name, each.globals["__name__"], list(each.consts)) for each in environments]
    try:
        return object_code.laid_out(content, symbol, described)
    except object_code.UnknownObjectCode:
        return ObjectCode(content, symbol, tuple(described))


@typeof_impl.register(Declared)
def _type_of_kernel(called: Declared, _: Any) -> Any:
    """The numba type of a kernel that another kernel calls: its dispatcher, compiled for its own signature."""
    if called not in _compiled:
        called.compile()
    if called not in _compiled:  # only its machine code was loaded
        _compile(called, ignores_cache=False)
    return types.Dispatcher(_compiled[called])


@typeof_impl.register(Inlined)
def _type_of_inlined(called: Inlined, _: Any) -> Any:
    return types.Dispatcher(_inlined(called))


@cache
def _inlined(called: Inlined) -> Any:
    return njit(**called.options)(called.function)


@typeof_impl.register(Intrinsic)
def _type_of_intrinsic(called: Intrinsic, _: Any) -> Any:
    return _type_of(_intrinsic(called))


@typeof_impl.register(NumbaFunction)
def _type_of_numba_function(called: NumbaFunction, _: Any) -> Any:
    return _type_of(_NUMBA_FUNCTIONS[called.name])


@typeof_impl.register(kernel_types.ExternalFunction)
def _type_of_external_function(called: kernel_types.ExternalFunction, _: Any) -> Any:
    return _type_of(types.ExternalFunction(called.name, numba_signature(called.signature)))


@cache
def _intrinsic(called: Intrinsic) -> Any:
    return intrinsic(called.function)


def _type_of(called: Any) -> Any:
    return cpu_target.typing_context.resolve_value_type(called)


def numba_signature(signature: Signature) -> Any:
    return numba_type(signature.result)(*map(numba_type, signature.args))


def numba_type(declared: Type) -> Any:
    match declared:
        case kernel_types.Scalar():
            return getattr(types, declared.name)
        case kernel_types.Record():
            return from_dtype(declared.dtype)
        case kernel_types.Array():
            layout: Any = declared.layout
            return types.Array(
                numba_type(declared.dtype), declared.ndim, layout, declared.readonly, aligned=declared.aligned
            )
        case kernel_types.NamedTuple():
            return types.BaseTuple.from_types([*map(numba_type, declared.types)], declared.instance_class)
        case kernel_types.Tuple():
            return types.BaseTuple.from_types([*map(numba_type, declared.types)])
    raise TypeError(f"{declared} is no type of a kernel's argument")
