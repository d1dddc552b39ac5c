"""Links with LLVM the object code that `shared.kernels.object_code` cannot lay out, such as code for architectures
other than x86-64. This takes 1 ms a kernel and loads all of numba."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import llvmlite.binding as llvm
from numba.core.registry import cpu_target
from numba.core.runtime import rtsys

from shared.kernels import calls as kernel_calls

_kept: list[Any] = []


def linked(object_code: bytes, symbol: str, environments: Sequence[tuple[str, str, list[Any]]]) -> tuple[int, Any]:
    """Link an ELF object. Returns (the address of the function `symbol`, its environment or None), which are valid
    until the process ends. `environments`: see `shared.kernels.machine_code.ObjectCode`. Not thread-safe."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    created = []
    for word, module, constants in environments:
        created.append(kernel_calls.environment(module, constants))
        word_address = engine.get_global_value_address(word)
        if word_address:
            ctypes.c_void_p.from_address(word_address).value = id(created[-1])
    _kept.append(created)
    address = int(engine.get_function_address(symbol))
    assert address, symbol
    return address, created[0] if created else None


@cache
def _engine() -> Any:
    rtsys.initialize(cpu_target.target_context)  # makes the functions of numba's runtime known by name
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    # Never released: its functions may free arrays at the very end of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine
