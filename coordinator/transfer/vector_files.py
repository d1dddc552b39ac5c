"""Vectors of a collection in files: JSON lines, Arrow, Parquet, and a pair of numpy's `.npy` with a file of ids.

A JSON line is a vector as an upsert takes it: {"id": …, "attributes": {"vector": […], …}}. In Arrow and Parquet the
columns are `id`, `vector` (a list of 32-bit floats) and `attributes`, a JSON object. An upsert replaces, so an import
that is repeated changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from coordinator.command_client import Client
from coordinator.transfer.arrow import library
from coordinator.transfer.log_files import arrow_batches

PAGE_VECTORS = 2_000
BATCH_VECTORS, BATCH_COMPONENTS, BATCH_BYTES = 5_000, 1 << 20, 16 << 20
"""Components of one upsert: 1,048,576 are 12 to 22 MB of JSON. The other attributes may take as many bytes."""

Vector = dict[str, Any]


def scrolled(client: Client, collection: str, filter_: Any = None) -> Iterator[list[Vector]]:
    """All vectors of a collection, or those that satisfy a filter, page by page, in the order of their ids."""
    body: dict[str, Any] = {"collection": collection, "limit": PAGE_VECTORS}
    if filter_ is not None:
        body["filter"] = filter_
    while True:
        page = client.call("POST", "/api/v1/vector/scroll", body)
        if page.get("warnings"):
            raise ValueError("; ".join(page["warnings"]))
        if page["vectors"]:
            yield page["vectors"]
        if "nextPageToken" not in page:
            return
        body["pageToken"] = page["nextPageToken"]


def schema() -> Any:
    """The schema of vectors in Arrow."""
    pa = library()
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("vector", pa.list_(pa.float32()), nullable=False),
            pa.field("attributes", pa.string()),
        ]
    )


def record_batch(vectors: list[Vector]) -> Any:
    """Vectors as a record batch."""
    pa = library()
    components = matrix(vectors)
    offsets = np.arange(len(vectors) + 1, dtype=np.int32) * components.shape[1]
    others = [{name: value for name, value in v["attributes"].items() if name != "vector"} for v in vectors]
    columns = [
        pa.array([vector["id"] for vector in vectors], pa.string()),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(components.reshape(-1))),
        pa.array([orjson.dumps(each).decode() if each else None for each in others], pa.string()),
    ]
    return pa.record_batch(columns, schema=schema())


def matrix(vectors: list[Vector]) -> NDArray[np.float32]:
    """float32[vectors, dimension]."""
    return np.array([vector["attributes"]["vector"] for vector in vectors], dtype=np.float32)


def vectors_of_batch(batch: Any) -> Iterator[Vector]:
    """The vectors of a record batch. Raises ValueError for wrong columns, and for an invalid vector."""
    if "id" not in batch.schema.names or "vector" not in batch.schema.names:
        raise ValueError(f"vectors need the columns 'id' and 'vector'; there are {', '.join(batch.schema.names)}")
    for row in batch.to_pylist():
        where = f"the vector {row['id']!r:.80}"
        if not isinstance(row["id"], str):
            raise ValueError(f"{where} has an id that is no text")
        attributes = _attributes(row.get("attributes"), where)
        yield {"id": row["id"], "attributes": {"vector": _components(row["vector"], where), **attributes}}


def _attributes(text: Any, where: str) -> dict[str, Any]:
    """The attributes in the column `attributes`, {} for an empty or missing text. Raises ValueError, whose text begins
    with `where`."""
    if text is None or text == "":
        return {}
    try:
        attributes = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        attributes = None
    if not isinstance(attributes, dict):
        raise ValueError(f"{where} has the `attributes` {text!r:.40}; they must be the text of a JSON object")
    return attributes


def _components(vector: Any, where: str) -> list[Any]:
    """The vector, if it is a list. Raises ValueError, whose text begins with `where`."""
    if not isinstance(vector, list):
        raise ValueError(f"{where} has the `vector` {vector!r:.40}; it must be a list of numbers")
    return vector


def vectors_of_lines(lines: Iterable[bytes]) -> Iterator[Vector]:
    """The vectors of JSON lines. Raises ValueError with the number of a line that is wrong."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            vector = orjson.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(vector, dict) or not isinstance(vector.get("attributes"), dict) or "id" not in vector:
            raise ValueError(f"line {number} is no vector: it must have `id` and `attributes`, with `vector` in them")
        _components(vector["attributes"].get("vector"), f"line {number} is no vector: it")
        yield {"id": vector["id"], "attributes": vector["attributes"]}


def vectors_of_npy(path: Path, ids_path: Path) -> Iterator[Vector]:
    """The rows of a numpy file, with the ids that are the lines of a text. Raises ValueError."""
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError):
        rows = None
    if not isinstance(rows, np.ndarray):
        raise ValueError(f"{path} is no matrix of numbers that numpy has saved as .npy")
    if rows.ndim != 2 or rows.dtype.kind not in "fi":
        raise ValueError(f"{path} has the shape {rows.shape} and the type {rows.dtype}; it must be a matrix of numbers")
    ids = ids_path.read_text(encoding="utf-8").splitlines()
    if len(ids) != len(rows):
        raise ValueError(f"{ids_path} has {len(ids)} ids, and {path} {len(rows)} rows")
    for id_, row in zip(ids, rows, strict=True):
        yield {"id": id_, "attributes": {"vector": row.tolist()}}


def read(path: Path, kind: str, ids_path: Path | None = None) -> Iterator[Vector]:
    """The vectors of a file. Raises ValueError, OSError."""
    if kind == "jsonl":
        with open(path, "rb") as file:
            yield from vectors_of_lines(file)
    elif kind == "npy":
        yield from vectors_of_npy(path, ids_path or ids_beside(path))
    else:
        for batch in arrow_batches(path, kind):
            yield from vectors_of_batch(batch)


def ids_beside(path: Path) -> Path:
    """The file with the ids that belongs to a numpy file."""
    return path.with_suffix(".ids")


def batches(vectors: Iterable[Vector]) -> Iterator[list[Vector]]:
    """Vectors in the batches of upserts."""
    batch: list[Vector] = []
    components = size = 0
    for vector in vectors:
        attributes = vector["attributes"]
        dimension = len(attributes["vector"])
        other_bytes = len(json.dumps({name: value for name, value in attributes.items() if name != "vector"}))
        is_full = (
            len(batch) == BATCH_VECTORS or components + dimension > BATCH_COMPONENTS or size + other_bytes > BATCH_BYTES
        )
        if batch and is_full:
            yield batch
            batch, components, size = [], 0, 0
        batch.append(vector)
        components += dimension
        size += other_bytes
    if batch:
        yield batch
