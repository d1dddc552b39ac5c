"""Machine code of kernels, as bytes and linked into this process.

numba can keep what it compiles as well. Loading that takes 5 ms a kernel and all of numba's compiler, because types and
intermediate code are loaded too, which only the compilation of a caller needs. Here the object code alone is linked,
by LLVM and without numba's part in it.
"""

from __future__ import annotations

import ctypes
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba import __version__ as numba_version
from numba.core import serialize
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys


@dataclass(frozen=True, slots=True)
class MachineCode:
    """`object_code`: an ELF object. `symbol`: the function in it that Python or C calls. `environments`: (symbol,
    numba's environment) of the function itself, then of those that it calls and that have constants; the code reads
    their addresses there."""

    object_code: bytes
    symbol: str
    environments: tuple[tuple[str, Any], ...]

    def encoded(self) -> bytes:
        encoded: bytes = serialize.dumps((self.object_code, self.symbol, self.environments))
        return encoded

    @classmethod
    def decoded(cls, data: bytes) -> MachineCode:
        return cls(*pickle.loads(data))


def of_library(library: Any, symbol: str, environments: Sequence[tuple[str, Any]]) -> MachineCode:
    """Of what numba has compiled in this process (not loaded)."""
    if library.has_dynamic_globals:
        raise ValueError(f"{library.name} has addresses of this process in its code, which no other process can run")
    object_code, _ = library.serialize_using_object_code()[2]
    return MachineCode(object_code, symbol, tuple(environments))


def linked(code: MachineCode) -> int:
    """The address of the function, which is there as long as the process. Not for two threads at once."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(code.object_code))
    engine.finalize_object()
    for symbol, environment in code.environments:
        place = engine.get_global_value_address(symbol)
        if place:
            ctypes.c_void_p.from_address(place).value = id(environment)
            _kept.append(environment)
    address = int(engine.get_function_address(code.symbol))
    assert address, code.symbol
    return address


def processor() -> bytes:
    """Identifies the instructions that compiled code may use, and the versions that it was compiled with."""
    told = (*cpu_target.target_context.codegen().magic_tuple(), numba_version, llvm.llvm_version_info)
    return repr(told).encode()


_kept: list[Any] = []


@cache
def _engine() -> Any:
    rtsys.initialize(cpu_target.target_context)  # so that the functions of numba's runtime are known by name
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    # For good: arrays may be freed by functions of it at the very end of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine
