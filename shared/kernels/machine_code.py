"""Machine code of kernels, as bytes and linked into this process.

numba has a cache of its own. Loading from it takes 5 ms a kernel and all of numba, because it also loads types and
intermediate code, which only compiling a caller needs. Linking with LLVM takes 1 ms a kernel and 60 MB of memory,
nearly all of it for LLVM itself. Here the code is laid out when it is compiled (`shared.kernels.object_code`), so
loading it means copying it and adding addresses to some of its words.
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
"""The alignment of a kernel's code and of each of its sections, in bytes."""
WORD_BYTES = 8
_PROCESSOR = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags", "CPU implementer", "CPU architecture",
    "CPU variant", "CPU part", "CPU revision", "Features",
)  # fmt: skip
_kept: list[Any] = []


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Code and constants of a kernel as they lie in memory, except for words that depend on addresses.

    `entry`: the offset of the function that Python or C calls. Each word image[places[i]:places[i] + 8] becomes
    addends[i] plus an address: that of symbols[targets[i]], or of the image itself if targets[i] is -1. places and
    targets are int32, addends int64. `environments`: (the offset of the word with the environment's address, or -1; the
    name of its module; its constants) of the function itself, then of the called functions that have constants.
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
    """An ELF object that LLVM links. `symbol`: the function in it that Python or C calls. `environments`: see
    `MachineCode`, but with the symbol of the word instead of its offset."""

    content: bytes
    symbol: str
    environments: tuple[tuple[str, str, list[Any]], ...]


def encoded(code: MachineCode | ObjectCode) -> bytes:
    return pickle.dumps((type(code) is MachineCode, [getattr(code, name) for name in code.__slots__]))


def decoded(data: bytes) -> MachineCode | ObjectCode:
    is_laid_out, values = pickle.loads(data)
    return MachineCode(*values) if is_laid_out else ObjectCode(*values)


def linked(codes: Sequence[MachineCode | ObjectCode]) -> list[tuple[int, Any]]:
    """Link each code. Returns (the address of the function, its environment or None) of each, valid until the process
    ends. Not thread-safe."""
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
    """Copy the codes into one new region of executable memory. Returns what `linked` does."""
    if not codes:
        return []
    ends = np.cumsum([-(-len(code.image) // ALIGNMENT) * ALIGNMENT for code in codes])
    starts = [0, *ends[:-1].tolist()]
    region = mmap.mmap(-1, int(ends[-1]), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    # Never released: its functions may free arrays at the very end of the process.
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
    # The words are not aligned: most are operands of instructions.
    byte_places = np.concatenate(places)[:, None] + np.arange(WORD_BYTES)
    memory[byte_places] = np.concatenate(words).view(np.uint8).reshape(-1, WORD_BYTES)


def _make_executable(address: int, size: int) -> None:
    """Make memory executable and read-only. Raises OSError."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if protect(address, size, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise OSError(ctypes.get_errno(), "compiled kernels cannot be made executable; see mprotect(2)")


@cache
def processor() -> bytes:
    """Identifies the instructions that compiled code may use, and the versions of the compilers."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        first = f"model: {platform.processor()}"
    fields = (line.partition(":")[::2] for line in first.splitlines())
    identifying = [(name.strip(), value.strip()) for name, value in fields if name.strip() in _PROCESSOR]
    compilers = [(kernel_calls.directory_of(name) / "_version.py").read_bytes() for name in ("numba", "llvmlite")]
    return repr((platform.machine(), identifying, compilers)).encode()
