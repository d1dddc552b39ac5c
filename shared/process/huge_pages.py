"""Huge pages for large memory that is read at random positions.

The processor caches the addresses of only a few thousand pages (in its TLB). In 100 MB of pages of 4 KB, nearly every
read at a random position has to look up its page first, which takes about as long as the read itself, and longer in a
virtual machine. With pages of 2 MB, it does not.

Memory is collapsed into huge pages once it is in use, so that unused capacity takes no memory, as it would if huge
pages had been requested beforehand. If the kernel does not support this (Linux 6.1 and later do) or forbids it, nothing
happens. An array that is about to be filled completely can get huge pages at once. Filling it is then faster, since
there is one page fault for each huge page instead of 512 for its small ones.
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
"""The share of a huge page's memory that must be in use, so that collapsing takes little additional memory. Thread
stacks, and heaps of which much was returned to the kernel, are not collapsed."""
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"

Span = tuple[int, int]
"""The first address of a piece of memory, and the address after its end."""

_libc = ctypes.CDLL(None, use_errno=True)


def is_wanted() -> bool:
    """Whether the system's settings allow programs to use huge pages."""
    try:
        with open(_SETTING) as file:
            return "[never]" not in file.read()
    except OSError:
        return False


def expect(array: NDArray[Any]) -> None:
    """Request huge pages for an array that is contiguous, not touched yet, and about to be filled completely."""
    first = -(-array.ctypes.data // HUGE_BYTES) * HUGE_BYTES
    size = (array.ctypes.data + array.nbytes) // HUGE_BYTES * HUGE_BYTES - first
    if size > 0:
        _libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_HUGEPAGE)


def mappings() -> list[Span]:
    """The memory of this process that is not mapped from files: the heaps of the C library and of Python, and large
    arrays."""
    spans = []
    with open("/proc/self/maps") as file:
        for line in file:
            addresses, permissions, _, _, inode, *name = line.split()
            start, end = (int(address, 16) for address in addresses.split("-"))
            if permissions == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and end - start >= HUGE_BYTES:
                spans.append((start, end))
    return spans


def collapse(span: Span) -> Iterator[bool]:
    """Collapse the used memory of a span, one huge page at a time. Yields whether each attempt succeeded. The memory
    may be read, written and freed meanwhile."""
    first, last = -(-span[0] // HUGE_BYTES), span[1] // HUGE_BYTES
    for block in range(first, last):
        if _resident_share(block * HUGE_BYTES) >= RESIDENT_SHARE_MIN:
            yield _libc.madvise(ctypes.c_void_p(block * HUGE_BYTES), ctypes.c_size_t(HUGE_BYTES), _MADV_COLLAPSE) == 0


def _resident_share(start: int) -> float:
    """The share of a huge page's small pages that are resident; 0 if some of its memory has been freed."""
    pages = np.zeros(HUGE_BYTES // PAGE_BYTES, np.uint8)
    if _libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(HUGE_BYTES), ctypes.c_void_p(pages.ctypes.data)):
        return 0.0
    return float(np.mean(pages & 1))
