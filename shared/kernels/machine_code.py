"""Machine code of kernels, as bytes and linked into this process.

numba can keep what it compiles as well. Loading that takes 5 ms a kernel and all of numba, because types and
intermediate code are loaded too, which only the compilation of a caller needs. And linking by LLVM takes 1 ms a kernel
and 60 MB of memory, nearly all of it for LLVM. Here the code that LLVM made is laid out when it is compiled
(`shared.kernels.object_code`), so that loading it is to copy it and to add addresses to some of its words.
"""

from __future__ import annotations

import ctypes
import mmap
import pickle
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import calls as kernel_calls

ALIGNMENT = 64
"""Of the code of a kernel and of each of its sections, in bytes."""
WORD_BYTES = 8
_PROCESSOR = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer", "CPU architecture",
    "CPU variant", "CPU part", "CPU revision", "Features",
)  # fmt: skip
_kept: list[Any] = []


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Code and constants of a kernel, as they lie in memory, but for words that depend on addresses.

    `entry`: where the function that Python or C calls begins. Each word image[places[i]:places[i] + 8] becomes
    addends[i] plus an address: of symbols[targets[i]], or of the image itself if that is -1. places and targets are
    int32, addends int64. `environments`: (where the address of an environment is read or -1, the name of its module,
    its constants) of the function itself, then of those that it calls and that have constants.
    """

    image: bytes
    entry: int
    symbols: tuple[str, ...]
    places: bytes
    targets: bytes
    addends: bytes
    environments: tuple[tuple[int, str, list[Any]], ...]


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """An ELF object that is linked by LLVM. `symbol`: the function in it that Python or C calls. `environments`: as of
    `MachineCode`, but with the symbol of the word that has the address."""

    content: bytes
    symbol: str
    environments: tuple[tuple[str, str, list[Any]], ...]


def encoded(code: MachineCode | ObjectCode) -> bytes:
    return pickle.dumps((type(code) is MachineCode, [getattr(code, name) for name in code.__slots__]))


def decoded(data: bytes) -> MachineCode | ObjectCode:
    is_laid_out, values = pickle.loads(data)
    return MachineCode(*values) if is_laid_out else ObjectCode(*values)


def linked(codes: Sequence[MachineCode | ObjectCode]) -> list[tuple[int, Any]]:
    """(The address of the function, its environment or None) of each. They are there as long as the process. Not for
    two threads at once."""
    laid_out = iter(_placed([code for code in codes if isinstance(code, MachineCode)]))
    if all(isinstance(code, MachineCode) for code in codes):
        return list(laid_out)
    from shared.kernels import llvm_linking

    return [
        llvm_linking.linked(code.content, code.symbol, code.environments)
        if isinstance(code, ObjectCode)
        else next(laid_out)
        for code in codes
    ]


def _placed(codes: Sequence[MachineCode]) -> list[tuple[int, Any]]:
    """As `linked`, in memory of their own."""
    if not codes:
        return []
    ends = np.cumsum([-(-len(code.image) // ALIGNMENT) * ALIGNMENT for code in codes])
    starts = [0, *ends[:-1].tolist()]
    region = mmap.mmap(-1, int(ends[-1]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    # For good: arrays may be freed by functions in it at the very end of the process.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(region))
    memory = np.frombuffer(region, np.uint8)
    base = memory.ctypes.data
    entries = []
    for code, start in zip(codes, starts, strict=True):
        memory[start : start + len(code.image)] = np.frombuffer(code.image, np.uint8)
        environments = []
        for place, module, constants in code.environments:
            environments.append(kernel_calls.environment(module, constants))
            if place >= 0:
                memory[start + place : start + place + WORD_BYTES].view(np.uint64)[0] = id(environments[-1])
        _kept.append(environments)
        entries.append((base + start + code.entry, environments[0] if environments else None))
    _add_addresses(memory, codes, starts)
    _make_executable(base, len(memory))
    return entries


def _add_addresses(memory: NDArray[np.uint8], codes: Sequence[MachineCode], starts: Sequence[int]) -> None:
    places, words = [], []
    for code, start in zip(codes, starts, strict=True):
        addresses = [memory.ctypes.data + start, *map(kernel_calls.address_of, code.symbols)]
        targets = np.array(addresses, np.uint64)[np.frombuffer(code.targets, np.int32) + 1]
        words.append(targets + np.frombuffer(code.addends, np.int64).view(np.uint64))
        places.append(np.frombuffer(code.places, np.int32) + np.int64(start))
    # The words are not aligned: most of them are operands of instructions.
    byte_places = np.concatenate(places)[:, None] + np.arange(WORD_BYTES)
    memory[byte_places] = np.concatenate(words).view(np.uint8).reshape(-1, WORD_BYTES)


def _make_executable(address: int, size: int) -> None:
    """From now on nothing writes to it. Raises OSError."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "compiled kernels cannot be made executable; see mprotect(2)")


@cache
def processor() -> bytes:
    """Identifies the instructions that compiled code may use, and the versions that it was compiled with."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        first = f"model: {platform.processor()}"
    named = (line.partition(":")[::2] for line in first.splitlines())
    told = [(name.strip(), value.strip()) for name, value in named if name.strip() in _PROCESSOR]
    compilers = [(kernel_calls.directory_of(name) / "_version.py").read_bytes() for name in ("numba", "llvmlite")]
    return repr((platform.machine(), told, compilers)).encode()
