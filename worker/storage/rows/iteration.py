"""Rows of a store in the order of their keys, up to the end of their range and not just to where reading failed.

The library's loops (`items`, `keys`) end without an exception at a block that cannot be read. Its readers (`iter`)
tell: one that is not valid any more is at its end if its status is good. `options` are kept as long as what reads with
them, which looks up its bounds there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rocksdict import RdictIter, ReadOptions, Snapshot

Check = Callable[[RdictIter], None]
"""Returns when the reader is at the end of its range, and raises when that is not what it stopped at."""

FEW_ROWS = 16
"""Rows that are read one by one. The library's own loop is faster for each row, but takes longer to begin and to
check."""


def ascending(snapshot: Snapshot, start: bytes, options: ReadOptions, check: Check) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) from `start` on."""
    reader = snapshot.iter(options)
    reader.seek(start)
    return _ascending(snapshot, reader, options, check)


def _ascending(
    snapshot: Snapshot, reader: RdictIter, options: ReadOptions, check: Check
) -> Iterator[tuple[bytes, bytes]]:
    for _ in range(FEW_ROWS):
        if not reader.valid():
            check(reader)
            return
        yield reader.key(), reader.value()
        reader.next()
    if not reader.valid():
        check(reader)
        return
    row: tuple[bytes, bytes] = reader.key(), b""
    following: Any = snapshot.items(from_key=row[0], read_opt=options)
    for row in following:
        yield row
    # What ended the loop is found out by a reader put to its last row.
    reader.seek(row[0])
    reader.next()
    check(reader)


def descending(reader: RdictIter, start: bytes, options: ReadOptions, check: Check) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) from the reader's place down to `start`: the library honours only the upper bound."""
    while reader.valid():
        row = reader.key(), reader.value()
        if row[0] < start:
            return
        yield row
        reader.prev()
    check(reader)
    del options


def keys(reader: RdictIter, options: ReadOptions, check: Check) -> Iterator[bytes]:
    """Keys from the reader's place on."""
    while reader.valid():
        yield reader.key()
        reader.next()
    check(reader)
    del options
