"""Checks a store without changing it: reads every row and verifies every checksum.

The store is opened through links in another directory, because the library writes its message log and its settings to
the directory that it opens, even if it only reads. The records of the store's own log are replayed into memory.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocksdict import AccessType, Rdict, ReadOptions

from worker.storage.rows import damage as store_damage
from worker.storage.rows import files as store_files
from worker.storage.rows import opening
from worker.storage.rows.damage import StoreDamaged, StoreLocked
from worker.storage.rows.marker import WRITES, Claim, Marker
from worker.storage.rows.reading import StoreReader

_WRITTEN_WHEN_OPENED = ("LOCK", "LOG", "rocksdict-config.json")


RowCheck = Callable[[StoreReader], Iterable[str]]
"""A check of the rows of a store whose blocks are whole: returns a text for each defect."""


def no_rows(reader: StoreReader) -> Iterable[str]:
    return ()


def check(path: Path, check_rows: RowCheck = no_rows) -> list[str]:
    """A text for each damage in the store, with the file and, if known, the family; empty if the store is whole. The
    texts of `check_rows` are added if the store's blocks are whole. Raises StoreLocked if a process has the store open,
    OSError if the store cannot be read at all."""
    with _locked(path):
        claim = Marker(path).read()
        try:
            store_files.verify(path, claim)
        except StoreDamaged as error:
            return [str(error)]
        with tempfile.TemporaryDirectory() as links:
            _link(path, links)
            _cut_as_a_start_does(path, Path(links), claim)
            texts = list(_damage(path, links, 0 if claim is None else claim.writes, check_rows))
        # The library's messages name the links.
        return [text.replace(links, str(path)) for text in texts]


@contextmanager
def opened(path: Path) -> Iterator[StoreReader]:
    """The rows of a store that no process has open. Raises StoreDamaged if it cannot be opened, OSError."""
    with tempfile.TemporaryDirectory() as links:
        _link(path, links)
        try:
            db, families = _open(links)
        except Exception as error:  # the library raises plain Exception
            raise store_damage.of_opening(path, error) from error
        try:
            yield StoreReader(path, db, families, int.from_bytes(db.get(WRITES) or b"", "big"))
        finally:
            db.close()


def _open(links: str) -> tuple[Rdict, list[str]]:
    """(the database, which is open for reading only, the names of its families). Raises plain Exception."""
    # Without these options, RocksDB ends the process with SIGSEGV if the manifest names a log.
    options = opening.tracking_options()
    options.set_paranoid_checks(True)
    families = Rdict.list_cf(links)
    return Rdict(links, options, dict.fromkeys(families, options), AccessType.read_only()), families


def _link(path: Path, links: str) -> None:
    for file in os.scandir(path):
        if file.is_file() and not file.name.startswith(_WRITTEN_WHEN_OPENED):
            os.symlink(os.path.abspath(file.path), os.path.join(links, file.name))


def _cut_as_a_start_does(store: Path, links: Path, claim: Claim | None) -> None:
    """Replace the link to a torn manifest by a shortened copy, as a start would shorten the manifest itself."""
    torn = store_files.torn_manifest(store, claim)
    if torn is not None:
        file, size = torn
        (links / file.name).unlink()
        (links / file.name).write_bytes(file.read_bytes()[:size])


def _damage(store: Path, path: str, writes: int, check_rows: RowCheck) -> Iterator[str]:
    """The texts of `check` for the store, opened at `path`. `writes`: the number of writes that it must contain."""
    try:
        db, families = _open(path)
    except Exception as error:  # the library raises plain Exception
        yield f"the store {path} cannot be opened: {error}"
        return
    is_whole, last_write = True, 0
    try:
        last_write = int.from_bytes(db.get(WRITES) or b"", "big")
        if last_write < writes:
            yield f"the log of the store {path} ends at write {last_write}, but it had acknowledged {writes}"
    except Exception as error:  # the library raises plain Exception
        yield f"family 'default' of the store {path}: {error}"
    tables = db.live_files()
    for name in families:
        family = db.get_column_family(name)
        reasons = _unreadable(family, None, None)
        if reasons:  # reading stops at the first damage, so each table is read separately to find the rest
            for table in tables:  # all tables, because the library does not say to which family a table belongs
                reasons |= _unreadable(family, table["start_key"], table["end_key"])
            is_whole = False
        yield from (f"family {name!r} of the store {path}: {reason}" for reason in sorted(reasons))
    if is_whole:
        yield from check_rows(StoreReader(store, db, families, last_write))
    db.close()


def _unreadable(family: Any, start: bytes | None, last: bytes | None) -> set[str]:
    """The errors that end reading the keys start ≤ key ≤ last, forwards and backwards; empty if there are none."""
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
    """Prevent other processes from opening the store inside the context. Raises StoreLocked if one has it open."""
    try:
        descriptor = os.open(path / "LOCK", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # opening a store creates this file, so no process has the store open
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
