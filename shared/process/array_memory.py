"""Memory accounts: the memory of the numpy arrays of one piece of work, counted exactly and bounded.

A program can replace numpy's functions that allocate the memory of arrays, for one context at a time (NEP 49,
https://numpy.org/neps/nep-0049.html). An array remembers the functions that allocated it. So an account counts every
array allocated while it is open, including intermediate results, until the array is freed, in whatever context. An
allocation past the account's limit fails, and numpy raises MemoryError. Memory that kernels allocate themselves and
Python's own objects are not counted.
"""

from __future__ import annotations

import ctypes
from collections import deque
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from shared.kernels import c_function, inlined, types
from shared.kernels.declarations import NumbaFunction

_HANDLER_NAME = b"mem_handler"
_SET_HANDLER, _GET_HANDLER = 304, 305
"""Indices of PyDataMem_SetHandler and PyDataMem_GetHandler in numpy's table of C functions, which never change."""
_HUGE_BYTES_MIN, _PAGE_BYTES, _MADV_HUGEPAGE = 4 << 20, 4096, 14
_USED, _LIMIT, _PEAK = range(3)
_LEFT_BYTES_MAX = 4096
"""A slot is reused while arrays of up to this size still count in it; its next account then counts that much too little
once they are freed. (Sizes of arrays that were grown in place are exact only to some bytes.)"""
_CHECKS_MAX = 2
"""The number of occupied slots that are checked before a new one is created."""

_carray = NumbaFunction("carray")
_CONTEXT, _ADDRESS, _SIZE = types.voidptr, types.intp, types.uintp
_malloc: Any = types.ExternalFunction("malloc", _ADDRESS(_SIZE))
_calloc: Any = types.ExternalFunction("calloc", _ADDRESS(_SIZE, _SIZE))
_realloc: Any = types.ExternalFunction("realloc", _ADDRESS(_ADDRESS, _SIZE))
_free: Any = types.ExternalFunction("free", types.void(_ADDRESS))
_madvise: Any = types.ExternalFunction("madvise", types.int32(_ADDRESS, _SIZE, types.int32))
_usable_size: Any = types.ExternalFunction("malloc_usable_size", _SIZE(_ADDRESS))


@inlined
def _grant(context: Any, size: Any) -> bool:
    numbers: Any = _carray(context, (3,), np.int64)
    if numbers[_USED] + size > numbers[_LIMIT]:
        return False
    numbers[_USED] += size
    numbers[_PEAK] = max(numbers[_PEAK], numbers[_USED])
    return True


@inlined
def _in_huge_pages(address: int, size: Any) -> int:
    """Request huge pages for a large array, as numpy's own functions do: there are fewer page faults. Returns the
    address."""
    if size >= _HUGE_BYTES_MIN and address != 0:
        offset = _PAGE_BYTES - address % _PAGE_BYTES
        _madvise(address + offset, size - offset, _MADV_HUGEPAGE)
    return address


def _allocate(context: Any, size: int) -> Any:
    return _in_huge_pages(_malloc(size), np.int64(size)) if _grant(context, np.int64(size)) else 0


def _allocate_zeros(context: Any, count: int, size: int) -> Any:
    total = np.int64(count) * np.int64(size)
    return _in_huge_pages(_calloc(count, size), total) if _grant(context, total) else 0


def _reallocate(context: Any, address: int, size: int) -> Any:
    more = np.int64(size) - np.int64(_usable_size(address))
    if more > 0 and not _grant(context, more):
        return 0
    if more < 0:
        _carray(context, (3,), np.int64)[_USED] += more
    return _realloc(address, size)


def _release(context: Any, address: int, size: int) -> None:
    if address != 0:  # numpy also "frees" buffers that it did not need, such as those of argsort
        _carray(context, (3,), np.int64)[_USED] -= np.int64(size)
        _free(address)


_SIGNATURES: dict[Any, Any] = {
    _allocate: _ADDRESS(_CONTEXT, _SIZE),
    _allocate_zeros: _ADDRESS(_CONTEXT, _SIZE, _SIZE),
    _reallocate: _ADDRESS(_CONTEXT, _ADDRESS, _SIZE),
    _release: types.void(_CONTEXT, _ADDRESS, _SIZE),
}
"""In the order of numpy's PyDataMemAllocator. numpy calls them with the interpreter lock held."""


class Account:
    """Counts and bounds the bytes of live arrays. One thread at a time may open it; any thread may free arrays."""

    def __init__(self, limit_bytes: int) -> None:
        self._slot = _slot()
        self._held = 0
        self._slot.numbers[:] = (0, limit_bytes, 0)

    @property
    def used_bytes(self) -> int:
        return max(0, int(self._slot.numbers[_USED]))

    @property
    def peak_bytes(self) -> int:
        return int(self._slot.numbers[_PEAK])

    @property
    def limit_bytes(self) -> int:
        return int(self._slot.numbers[_LIMIT])

    def hold(self, size: int) -> None:
        """Count `size` more bytes, in addition to arrays, as long as the account exists. Raises MemoryError past the
        limit."""
        numbers = self._slot.numbers
        if numbers[_USED] + size > numbers[_LIMIT]:
            raise MemoryError(size)
        numbers[_USED] += size
        numbers[_PEAK] = max(numbers[_PEAK], numbers[_USED])
        self._held += size

    def open(self) -> Opened:
        """A context in which arrays that this thread allocates are counted."""
        return Opened(self._slot.handler, self)

    def __del__(self) -> None:
        self._slot.numbers[_USED] -= self._held
        _release_slot(self._slot)


class Opened:
    """A context in which numpy allocates this thread's arrays with `handler`. It keeps `account` alive, to which the
    handler belongs. Every query enters one: a class takes a third of the time of a generator."""

    __slots__ = ("_account", "_before", "_handler")

    def __init__(self, handler: Any, account: Account | None = None) -> None:
        self._handler = handler
        self._account = account

    def __enter__(self) -> None:
        self._before = _numpy().set_handler(self._handler)

    def __exit__(self, *_: object) -> None:
        _numpy().set_handler(self._before)


def uncounted() -> Opened:
    """A context in which this thread's arrays count in no account: those of caches, which outlive the work that creates
    them."""
    return Opened(_numpy().default)


def prepare() -> None:
    """Compile the functions, or load them from the cache on disk. Processes forked later inherit them."""
    _numpy()


class _Allocator(ctypes.Structure):
    """numpy's PyDataMemAllocator."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("context", "malloc", "calloc", "realloc", "free")]


class _Handler(ctypes.Structure):
    """numpy's PyDataMem_Handler, version 1."""

    _fields_ = [("name", ctypes.c_char * 127), ("version", ctypes.c_uint8), ("allocator", _Allocator)]


def in_use_bytes() -> int:
    """The bytes of the arrays in all accounts of this process."""
    return sum(max(0, int(slot.numbers[_USED])) for slot in list(_slots))


class _Slot:
    """The numbers of an account (int64[3]: used, limit, peak), and the handler that updates them.

    Slots are never freed, not even when the process ends, since arrays that outlive their account still refer to them.
    A slot is reused once its arrays are freed.
    """

    def __init__(self) -> None:
        self.numbers = np.zeros(3, dtype=np.int64)
        functions = _numpy().functions
        self._struct = _Handler(b"triptych", 1, _Allocator(self.numbers.ctypes.data, *functions))
        self.handler = _new_capsule(ctypes.addressof(self._struct), _HANDLER_NAME, None)
        _keep_forever(self)
        _slots.append(self)

    def is_free(self) -> bool:
        return bool(self.numbers[_USED] <= _LEFT_BYTES_MAX)


_slots: list[_Slot] = []
"""All slots: as many as there were accounts at the same time."""
_idle: deque[_Slot] = deque()
_occupied: deque[_Slot] = deque()
"""Slots that no account uses: those without arrays, and those that still had arrays at the last check."""


def _slot() -> _Slot:
    # The operations of a deque are atomic, so threads need no lock.
    with suppress(IndexError):
        return _idle.pop()
    with suppress(IndexError):
        for _ in range(_CHECKS_MAX):
            slot = _occupied.popleft()
            if slot.is_free():
                return slot
            _occupied.append(slot)
    return _Slot()


def _release_slot(slot: _Slot) -> None:
    (_idle if slot.is_free() else _occupied).append(slot)


def _keep_forever(thing: object) -> None:
    """Never free this object: arrays may be freed at the very end of the process, after everything else."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


class _Numpy:
    """numpy's functions that set and get the handler, its default handler, and the addresses of our functions."""

    def __init__(self) -> None:
        interface: Any = _multiarray_umath
        table: Any = (ctypes.c_void_p * (_GET_HANDLER + 1)).from_address(_pointer_of(interface._ARRAY_API, None))
        self.set_handler: Any = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object)(table[_SET_HANDLER])
        self.default: Any = ctypes.PYFUNCTYPE(ctypes.py_object)(table[_GET_HANDLER])()
        self.functions = tuple(c_function(signature, function) for function, signature in _SIGNATURES.items())
        _keep_forever(self)


@cache
def _numpy() -> _Numpy:
    return _Numpy()
