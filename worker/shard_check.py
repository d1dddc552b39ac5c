"""Checks one shard's directory offline: its store and the rows in it, its blocks, and its records in the write-ahead
log. Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from shared.data_files import Finding, LogFacts
from shared.durable import DAMAGED
from worker.logs import verify as logs
from worker.series import verify as series
from worker.series.verify import FileCheck
from worker.storage.rows import check as store_check
from worker.storage.rows import known_damage
from worker.storage.rows.damage import StoreDamaged
from worker.storage.rows.marker import Marker
from worker.storage.rows.reading import StoreReader
from worker.storage.wal import log as wal
from worker.vectors import check as vectors

STORE = "store"
_FILE = re.compile(r"(MANIFEST-\d+|CURRENT|\d+\.(sst|log))")
_NOTHING = (np.zeros(0, dtype=np.int64),)

Payloads = Mapping[int, Sequence[memoryview]]
"""Area → the payloads of a shard's records in the write-ahead log, in order."""


@dataclass(slots=True)
class _DecodedRows:
    """The decoded rows of a store; a part is None if it could not be read."""

    series: series.SeriesRows | None = None
    log: logs.LogRows | None = None
    writes: int = 0
    defects: dict[str, str] = field(default_factory=dict)
    """Defect → what depends on it."""


def check_store(path: Path) -> list[str]:
    """A text for each damage in a store, including the rows of series and log; empty if there is none. Vectors are not
    checked: a store with damaged vectors can be used, and answers say what is missing. Raises StoreLocked, OSError."""

    def rows(reader: StoreReader) -> Iterator[str]:
        store_rows = _DecodedRows()
        yield from _series(store_rows, reader)
        yield from _log(store_rows, reader)

    return store_check.check(path, rows)


def _read_rows(store_rows: _DecodedRows, listed: set[int] | None, reader: StoreReader) -> Iterable[str]:
    store_rows.writes = reader.writes
    parts: list[tuple[str, Callable[[], Iterable[str]]]] = [
        ("all samples of the shard: it is refused, or lacks series", lambda: _series(store_rows, reader)),
        ("records of the log on this shard", lambda: _log(store_rows, reader)),
        ("these vectors: they are missing from answers, which say so", lambda: vectors.check_rows(reader, listed)),
    ]
    for depends, texts in parts:
        try:
            store_rows.defects.update(dict.fromkeys(texts(), depends))
        except StoreDamaged as error:
            store_rows.defects[str(error)] = depends
    return store_rows.defects


def _series(store_rows: _DecodedRows, reader: StoreReader) -> Iterable[str]:
    store_rows.series = series.series_rows(reader)
    return store_rows.series.wrong


def _log(store_rows: _DecodedRows, reader: StoreReader) -> Iterable[str]:
    store_rows.log = logs.log_rows(reader)
    return store_rows.log.wrong


def check(data: Path, shard: int, payloads: Payloads, listed: set[int] | None) -> tuple[list[Finding], LogFacts | None]:
    """(findings, what the shard holds of the log; None if unknown). `listed`: ids of the vector collections, None if
    the list of collections is lost. Raises StoreLocked, OSError."""
    directory = data / "shards" / f"{shard:04d}"
    store = directory / STORE
    if not (store / "CURRENT").exists() and not any(directory.rglob("*.*")):
        return [], LogFacts(shard)  # a first start that was killed
    rows = _DecodedRows()
    texts_of_store = store_check.check(store, partial(_read_rows, rows, listed))
    findings = [_of_store(data, store, text, rows) for text in texts_of_store]
    findings += _of_marker(data, store, rows.writes)
    if rows.series is not None:
        findings += _of_blocks(data, directory / "blocks", rows.series)
        for text in series.check_journal(rows.series, payloads.get(wal.SERIES, ())):
            findings.append(_of_record(shard, text, "these samples: answers about the shard say that they are missing"))
    elif (directory / "blocks").is_dir():
        what = "its blocks could not be checked, since the store that names them is damaged"
        findings.append(Finding(_relative(data, directory / "blocks"), what, "nothing by itself", is_damage=False))
    facts = None
    if rows.log is not None:
        texts, facts = logs.check_messages(shard, rows.log, payloads.get(wal.LOG, ()))
        findings += [_of_record(shard, text, "the whole shard: it is refused") for text in texts]
    return findings, facts


def _relative(data: Path, path: Path) -> str:
    return path.relative_to(data).as_posix()


def _of_store(data: Path, store: Path, text: str, rows: _DecodedRows) -> Finding:
    depends = rows.defects.get(text, "the whole shard: it is refused, reads are answered without it and say so")
    named = _FILE.search(text)
    file = store / named[1] if named else store
    return Finding(
        _relative(data, file),
        text.replace(f"{data}/", ""),
        depends,
        f"restore {_relative(data, store.parent)} from a copy",
    )


def _of_marker(data: Path, store: Path, writes: int) -> Iterator[Finding]:
    path, depends = Marker(store).path, "nothing by itself: it only serves to detect lost writes of the store"
    remedy = "nothing: the next start creates it again"
    why = Marker(store).defect()
    if why:
        yield Finding(_relative(data, path), why, depends, remedy)
    elif writes and not path.exists():
        yield Finding(_relative(data, path), "it is missing", depends, remedy)
    known = known_damage.path_of(store)
    if known.exists():
        text = known.read_text(errors="replace").strip()
        yield Finding(
            _relative(data, known),
            f"the store was found damaged while it was in use: {text}",
            "nothing, if there is no other finding about this store",
            "nothing: the next start checks the store, and removes this file if it is well",
        )


def _of_blocks(data: Path, directory: Path, rows: series.SeriesRows) -> Iterator[Finding]:
    for file in series.check_blocks(directory, rows.blocks, rows.left_over):
        path = _relative(data, file.path)
        if file.remark:
            yield Finding(path, file.remark, "nothing", is_damage=False)
        for damage in file.damage:
            yield Finding(path, damage.reason, _lost(damage), _remedy(file), f"{file.samples_good} samples of it")
        unknown = rows.unknown(file.series) if file.series is not None else _NOTHING[0]
        if len(unknown):
            what = f"it has samples of {len(unknown)} series that the store does not have, such as id {unknown[0]}"
            yield Finding(path, what, "these samples: they are missing from answers", "restore the shard from a copy")


def _lost(damage: series.Damage) -> str:
    if damage.samples is None:
        return "samples that only this file may have; answers about the shard say so"
    series_text = "" if damage.series is None else f" of {len(damage.series)} series"
    times = f"from {damage.earliest_ms} to {damage.latest_ms} ms"
    return f"{damage.samples} samples{series_text} {times}; answers about these times say that they are missing"


def _remedy(file: FileCheck) -> str:
    if DAMAGED in file.path.name:
        return "delete it to accept the loss"
    return "restore the file from a copy; else retention drops it in time"


def _of_record(shard: int, text: str, depends: str) -> Finding:
    return Finding("wal", f"shard {shard}: {text}", depends, "restore the directory from a copy")
