"""Checks a store without changing it: reads every row and verifies every checksum.

The store is opened through links in another directory, because the library writes its log of messages and its settings
where it opens a store, even one that is only read. The records of the store's log are read too, into memory.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Options, Rdict, ReadOptions

from worker.storage.rows import files as store_files
from worker.storage.rows.damage import StoreDamaged, StoreLocked
from worker.storage.rows.marker import WRITES, Claim, Marker
from worker.storage.rows.reading import StoreReader

_WRITTEN_WHEN_OPENED = ("LOCK", "LOG", "rocksdict-config.json")


Rows = Callable[[StoreReader], Iterable[str]]
"""Looks at the rows of a store whose blocks are whole; a text for each thing that is wrong with them."""


def no_rows(reader: StoreReader) -> Iterable[str]:
    return ()


def check(path: Path, rows: Rows = no_rows) -> list[str]:
    """What is damaged in the store: a text each, with the file, and the family where it is known; empty when all is
    well. What `rows` finds is added. Raises StoreLocked when a process has it open, OSError when it cannot be read at
    all."""
    with _locked(path):
        claim = Marker(path).read()
        try:
            store_files.verify(path, claim)
        except StoreDamaged as error:
            return [str(error)]
        with tempfile.TemporaryDirectory() as links:
            for file in os.scandir(path):
                if file.is_file() and not file.name.startswith(_WRITTEN_WHEN_OPENED):
                    os.symlink(os.path.abspath(file.path), os.path.join(links, file.name))
            _cut_as_a_start_does(path, Path(links), claim)
            texts = list(_damage(path, links, 0 if claim is None else claim.writes, rows))
        # The library names the files by the links.
        return [text.replace(links, str(path)) for text in texts]


def _cut_as_a_start_does(store: Path, links: Path, claim: Claim | None) -> None:
    torn = store_files.torn_manifest(store, claim)
    if torn is not None:
        file, size = torn
        (links / file.name).unlink()
        (links / file.name).write_bytes(file.read_bytes()[:size])


def _damage(store: Path, path: str, writes: int, rows: Rows) -> Iterator[str]:
    options = Options(raw_mode=True)
    options.set_paranoid_checks(True)
    try:
        families = Rdict.list_cf(path)
        db = Rdict(path, options, dict.fromkeys(families, options), AccessType.read_only())
    except Exception as error:  # the library raises plain Exception
        yield f"the store {path} cannot be opened: {error}"
        return
    is_whole, last_write = True, 0
    try:
        last_write = int.from_bytes(db.get(WRITES) or b"", "big")
        if last_write < writes:
            yield f"the log of the store {path} ends at write {last_write}, and it had acknowledged {writes}"
    except Exception as error:  # the library raises plain Exception
        yield f"family 'default' of the store {path}: {error}"
    tables = db.live_files()
    for name in families:
        family = db.get_column_family(name)
        reasons = _unreadable(family, None, None)
        if reasons:  # the first one; each table for itself tells of the others
            for table in tables:  # of any family: which one it has is not told
                reasons |= _unreadable(family, table["start_key"], table["end_key"])
            is_whole = False
        yield from (f"family {name!r} of the store {path}: {reason}" for reason in sorted(reasons))
    if is_whole:
        yield from rows(StoreReader(store, db, families, last_write))
    db.close()


def _unreadable(family: Any, start: bytes | None, last: bytes | None) -> set[str]:
    """What ends the reading of these keys, from both sides."""
    reasons = set()
    for from_key, forward in ((start, True), (last, False)):
        options = ReadOptions()
        options.set_verify_checksums(True)
        reader = family.iter(options)
        try:
            if forward:
                reader.seek_to_first() if from_key is None else reader.seek(from_key)
            else:
                reader.seek_to_last() if from_key is None else reader.seek_for_prev(from_key)
            while reader.valid() and _is_within(reader.key(), start, last):
                reader.value()
                reader.next() if forward else reader.prev()
            reader.status()
        except Exception as error:  # the library raises plain Exception
            reasons.add(str(error))
    return reasons


def _is_within(key: bytes, start: bytes | None, last: bytes | None) -> bool:
    return (start is None or key >= start) and (last is None or key <= last)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Nobody opens the store inside. Raises StoreLocked when somebody has it."""
    try:
        descriptor = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # nobody has opened it since the file is gone
        yield
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            raise StoreLocked(f"the store {path} is in use: stop the service first") from error
        yield
    finally:
        os.close(descriptor)
