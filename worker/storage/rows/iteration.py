"""Rows of a store in key order, complete: a scan that cannot be read to its end raises.

The library's loops (`items`, `keys`) end without an exception at a block that cannot be read. Its readers (`iter`) know
more: a reader that is no longer valid has reached its end if its status is good. Each function keeps `options` alive as
long as its reader, because the reader refers to the bounds in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import RdictIter, ReadOptions, Snapshot

from shared.errors import Unavailable
from worker.storage.rows import damage as store_damage

Check = Callable[[RdictIter], None]
"""Returns if the reader has stopped at the end of its range, and raises if it has stopped earlier."""

FEW_ROWS = 16
"""The first rows are read one by one. The library's own loop is faster per row, but takes longer to start and to
check."""


def check_end(path: Path, reader: RdictIter) -> None:
    """The `Check` of the store at `path`. Raises StoreDamaged, Unavailable."""
    try:
        reader.status()
    except Exception as error:  # the library raises plain Exception
        raise store_damage.of_reading(path, error) from error
    if reader.valid():
        raise Unavailable(f"the store {path} could not be read on from {reader.key()!r}; try again later")


def ascending(snapshot: Snapshot, start: bytes, options: ReadOptions, check: Check) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of the snapshot from `start` on, ascending, up to the bound in `options`. The reader begins when
    this is called. Raises what `check` raises."""
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
    first, last = reader.key(), None
    remaining_rows: Any = snapshot.items(from_key=first, read_opt=options)
    for row in remaining_rows:
        yield row
        last = row[0]
    # The loop does not say why it has ended, perhaps before its first row. A reader that continues from there does.
    reader.seek(first if last is None else last)
    if last is not None:
        reader.next()
    check(reader)


def descending(reader: RdictIter, start: bytes, options: ReadOptions, check: Check) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) from the reader's position down to `start`, which is compared here because the library honours the
    upper bound only. Raises what `check` raises."""
    while reader.valid():
        row = reader.key(), reader.value()
        if row[0] < start:
            return
        yield row
        reader.prev()
    check(reader)
    del options


def keys(reader: RdictIter, options: ReadOptions, check: Check) -> Iterator[bytes]:
    """The keys from the reader's position on, ascending. Raises what `check` raises."""
    while reader.valid():
        yield reader.key()
        reader.next()
    check(reader)
    del options
