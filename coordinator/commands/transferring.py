"""The work of `triptych import` and `triptych export`, without the parsing of their arguments."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from coordinator.command_client import Client, CommandError
from coordinator.commands.output import INCOMPLETE
from coordinator.commands.progress import amounts
from coordinator.plurals import counted
from coordinator.transfer import log_files, vector_files
from coordinator.transfer.arrow import ArrowStream, ParquetFile
from coordinator.transfer.sample_files import sources_of
from coordinator.transfer.uploading import STATE_SUFFIX, Outcome, State, Uploader, patiently
from shared.errors import BadData

REFUSED_SHOWN = 5
VECTORS_AGAIN = "the same command starts over, and does not change what is already stored"


@contextmanager
def errors() -> Iterator[None]:
    """Errors of sources and files are shown as one line."""
    try:
        yield
    except (ValueError, BadData) as error:
        raise CommandError(str(error)) from error


def import_samples(
    client: Client,
    paths: Sequence[Path],
    output: BinaryIO,
    *,
    kind: str | None = None,
    columns: str = "",
    skips: int = 0,
    state_path: Path | None = None,
    begins_anew: bool = False,
) -> int:
    """Import samples from files, blocks and snapshots, except those that an earlier run has imported to the same
    cluster, unless `begins_anew`. Returns the exit code. Raises CommandError, after which the same call resumes."""
    outcome = Outcome()
    with errors():
        path = state_path or paths[0].with_name(paths[0].name + STATE_SUFFIX)
        if begins_anew:
            path.unlink(missing_ok=True)
        state = State.read(path, client.url)
        sources = [source for own in paths for source in sources_of(own, kind, columns, skips)]
        total = sum(source.size for source in sources)
        with amounts("import", total, "0 samples") as tell:
            uploader = Uploader(client, outcome, lambda batch: tell(batch.size, f"{outcome.samples:,} samples"))
            try:
                for source in sources:
                    begin = state.position(source.name, source.identity)
                    tell(begin, "")

                    def acknowledge(position: int, name: str = source.name, identity: str = source.identity) -> None:
                        state.acknowledge(name, identity, position)

                    uploader.send(source.batches(begin), acknowledge)
            except BaseException:
                uploader.close()
                state.save()
                raise
            uploader.close()
        state.done()
        output.write(f"{counted(outcome.samples, 'samples imported')}\n".encode())
        return _tell_refused(outcome.refused + [note for source in sources for note in source.notes])


def _tell_refused(refused: Sequence[str]) -> int:
    for text in islice(refused, REFUSED_SHOWN):
        sys.stderr.write(f"triptych: {text}\n")
    if len(refused) > REFUSED_SHOWN:
        sys.stderr.write(f"triptych: and {counted(len(refused) - REFUSED_SHOWN, 'requests')} more with refused items\n")
    return INCOMPLETE if refused else 0


@contextmanager
def written_whole(path: Path | None) -> Iterator[BinaryIO]:
    """A file that gets its name only when it is complete; None: standard output."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "wb") as file:
            yield file
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def export_samples(
    client: Client, match: Sequence[str], path: Path | None, *, kind: str, start: str = "", end: str = ""
) -> int:
    """Export the samples of series to a file. Returns the exit code. Raises CommandError, and then leaves no file."""
    parameters: dict[str, Any] = {"match[]": list(match), "format": kind}
    parameters |= {name: text for name, text in (("start", start), ("end", end)) if text}
    with amounts("export", 0, "0 bytes") as tell, written_whole(path) as file:
        size = 0
        for piece in client.stream("/api/v1/export", **parameters):
            file.write(piece)
            size += len(piece)
            tell(len(piece), f"{size:,} bytes")
    return 0


class LinesWriter:
    """Items as JSON lines."""

    head = tail = b""

    def write(self, items: list[dict[str, Any]]) -> bytes:
        return b"".join(orjson.dumps(item) + b"\n" for item in items)


class BatchWriter:
    """Items as record batches of an Arrow stream or a Parquet file."""

    def __init__(self, kind: str, schema: Any, batch_of: Callable[[list[dict[str, Any]]], Any]) -> None:
        self._file = ArrowStream(schema) if kind == "arrow" else ParquetFile(schema, {})
        self._batch_of = batch_of
        self.head = self._file.head

    def write(self, items: list[dict[str, Any]]) -> bytes:
        return bytes(self._file.written(self._batch_of(items)))

    @property
    def tail(self) -> bytes:
        return self._file.tail


def export_log(client: Client, path: Path | None, *, kind: str, parameters: dict[str, str | int]) -> int:
    """Export the records that a scan with these parameters returns. Returns the exit code."""
    with errors():
        arrow = None if kind == "jsonl" else log_files.schema()
        writer = LinesWriter() if arrow is None else BatchWriter(kind, arrow, log_files.record_batch)
        warnings = dict[str, None]()
        _write_items(log_files.scanned(client, parameters, warnings), writer, path, "records")
    for text in warnings:
        sys.stderr.write(f"warning: {text}\n")
    return INCOMPLETE if warnings else 0


def export_vectors(
    client: Client, path: Path | None, *, kind: str, collection: str, filter_: Any = None, ids_path: Path | None = None
) -> int:
    """Export a collection. With the kind `npy`, the ids go to a separate text file, and other attributes are left out.
    Returns the exit code."""
    with errors():
        pages = vector_files.scrolled(client, collection, filter_)
        if kind == "npy":
            if path is None:
                raise CommandError("a .npy file needs a name, because its ids go to a file beside it")
            return _export_npy(pages, path, ids_path or vector_files.ids_beside(path))
        arrow = None if kind == "jsonl" else vector_files.schema()
        writer = LinesWriter() if arrow is None else BatchWriter(kind, arrow, vector_files.record_batch)
        _write_items(pages, writer, path, "vectors")
    return 0


def _write_items(
    pages: Iterable[list[dict[str, Any]]], writer: LinesWriter | BatchWriter, path: Path | None, what: str
) -> None:
    with amounts("export", 0, f"0 {what}") as tell, written_whole(path) as file:
        count = 0
        file.write(writer.head)
        for items in pages:
            file.write(writer.write(items))
            count += len(items)
            tell(len(items), f"{count:,} {what}")
        file.write(writer.tail)


def _export_npy(pages: Iterable[list[dict[str, Any]]], path: Path, ids_path: Path) -> int:
    """Writes the rows as they arrive, and last the header, which has their number."""
    import numpy as np

    def head(rows: int, dimension: int) -> bytes:
        text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows:>12}, {dimension:>6}), }}"
        return np.lib.format.magic(1, 0) + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"

    count = dimension = left_out = 0
    with amounts("export", 0, "0 vectors") as tell, written_whole(path) as file, written_whole(ids_path) as ids:
        file.write(head(0, 0))
        for vectors in pages:
            rows = vector_files.matrix(vectors)
            if any(len(f"{vector['id']}.".splitlines()) > 1 for vector in vectors):
                raise CommandError("an id has a line break, which a file of ids cannot have; choose another format")
            dimension = rows.shape[1]
            file.write(rows.astype("<f4").tobytes())
            ids.write("".join(vector["id"] + "\n" for vector in vectors).encode())
            left_out += sum(len(vector["attributes"]) > 1 for vector in vectors)
            count += len(vectors)
            tell(len(vectors), f"{count:,} vectors")
        file.seek(0)
        file.write(head(count, dimension))
    if left_out:
        sys.stderr.write(f"triptych: the attributes of {left_out} vectors are left out, which .npy cannot have\n")
    return INCOMPLETE if left_out else 0


def import_log(client: Client, path: Path, output: BinaryIO, *, kind: str, producer: str = "") -> int:
    """Append the records of a file in their order. A batch that is sent twice is appended once, because it has a
    sequence number of a producer, whose default name is a hash of the file's name, size and time. Returns the exit
    code."""
    status = path.stat()
    identity = f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"
    state = State.read(path.with_name(path.name + STATE_SUFFIX), f"{client.url} log {producer}")
    done = state.position(path.name, identity)
    name = producer or "import/" + base64.b32encode(sha256(identity.encode()).digest()[:15]).decode()
    count = 0
    with errors(), amounts("import", 0, "0 records") as tell:
        for number, batch in enumerate(log_files.batches(log_files.read(path, kind))):
            count += len(batch)
            if number < done:
                continue
            body = {"records": batch, "awaitDurable": True, "producerId": name, "producerSeq": number}
            patiently(partial(client.call, "POST", "/api/v1/log/append", body))
            state.acknowledge(path.name, identity, number + 1)
            state.save()  # the server recognises only the last batches of a producer
            tell(len(batch), f"{count:,} records")
        state.done()
    output.write(f"{counted(count, 'records appended')}\n".encode())
    return 0


def import_vectors(
    client: Client, path: Path, output: BinaryIO, *, kind: str, collection: str, ids_path: Path | None = None
) -> int:
    """Upsert the vectors of a file; a repetition changes nothing. Returns the exit code."""
    count = 0
    with errors(), amounts("import", 0, "0 vectors") as tell:
        for batch in vector_files.batches(vector_files.read(path, kind, ids_path)):
            body = {"collection": collection, "upsertVectors": batch}
            patiently(partial(client.call, "POST", "/api/v1/vector/write", body), then=VECTORS_AGAIN)
            count += len(batch)
            tell(len(batch), f"{count:,} vectors")
    output.write(f"{counted(count, 'vectors imported')}\n".encode())
    return 0
