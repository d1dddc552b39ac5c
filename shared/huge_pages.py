"""Huge pages for large memory that is read at random places.

The processor keeps the places of only some thousand pages. In 100 MB of pages of 4 KB, nearly every read at a random
place has to look its page up first, which takes about as long as the read itself, and longer in a virtual machine. With
pages of 2 MB, it does not.

Memory is collapsed into huge pages once it is in use. So capacity that nobody has touched stays without memory, which
it would not if huge pages had been asked for beforehand. Where the kernel cannot do this (it can from Linux 6.1 on) or
is told not to, nothing happens. What is about to be filled from end to end can have huge pages at once, and is filled
faster then: the kernel is called for each huge page, and not for each of its 512 small ones.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES = 4096
HUGE_BYTES = 2 << 20
RESIDENT_SHARE_MIN = 0.9
"""Of a huge page's memory that must be in use, so that collapsing it takes little more. Thread stacks, and heaps of
which much was returned to the kernel, stay as they are."""
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"

Span = tuple[int, int]
"""Addresses: where a piece of memory begins and ends."""

_libc = ctypes.CDLL(None, use_errno=True)


def is_wanted() -> bool:
    """Whether the machine's owner lets programs have huge pages."""
    try:
        with open(_SETTING) as file:
            return "[never]" not in file.read()
    except OSError:
        return False


def expect(array: NDArray[Any]) -> None:
    """All of this array, contiguous and not touched yet, is about to be filled: let it have huge pages."""
    first = -(-array.ctypes.data // HUGE_BYTES) * HUGE_BYTES
    size = (array.ctypes.data + array.nbytes) // HUGE_BYTES * HUGE_BYTES - first
    if size > 0:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def mappings() -> list[Span]:
    """The memory of this process that comes from no file: the C library's heap, Python's, and large arrays."""
    spans = []
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, permissions, _, _, inode, *name = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            if permissions == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and end - start >= HUGE_BYTES:
                spans.append((start, end))
    return spans


def collapse(span: Span) -> Iterator[bool]:
    """Collapse what is in use of a span, one huge page at a time: yields whether each one could be had. The memory may
    be read, written and freed meanwhile."""
    first, last = -(-span[0] // HUGE_BYTES), span[1] // HUGE_BYTES
    for block in range(first, last):
        if _resident_share(block * HUGE_BYTES) >= RESIDENT_SHARE_MIN:
            yield _libc.madvise(ctypes.c_void_p(block * HUGE_BYTES), ctypes.c_size_t(HUGE_BYTES), _MADV_COLLAPSE) == 0


def _resident_share(start: int) -> float:
    """The share of the pages of a huge page's memory that are in memory; 0 if some of it has been freed."""
    pages = np.zeros(HUGE_BYTES // PAGE_BYTES, np.uint8)
    if _libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(HUGE_BYTES), ctypes.c_void_p(pages.ctypes.data)):
        return 0.0
    return float(np.mean(pages & 1))
