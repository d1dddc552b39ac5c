"""Object code that `shared.kernels.object_code` does not understand, such as that for other processors than x86-64, is
kept as it is and linked by LLVM. That takes 1 ms a kernel, and all of numba."""

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
    """Links an ELF object. Returns (the address of the function `symbol`, its environment or None), which are there as
    long as the process. `environments`: see `shared.kernels.machine_code.ObjectCode`. Not for two threads at once."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(object_code))
    engine.finalize_object()
    made = []
    for word, module, constants in environments:
        made.append(kernel_calls.environment(module, constants))
        place = engine.get_global_value_address(word)
        if place:
            ctypes.c_void_p.from_address(place).value = id(made[-1])
    _kept.append(made)
    address = int(engine.get_function_address(symbol))
    assert address, symbol
    return address, made[0] if made else None


@cache
def _engine() -> Any:
    rtsys.initialize(cpu_target.target_context)  # so that the functions of numba's runtime are known by name
    target = llvm.Target.from_triple(llvm.get_process_triple())
    machine = target.create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    # For good: arrays may be freed by functions of it at the very end of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(engine))
    return engine
