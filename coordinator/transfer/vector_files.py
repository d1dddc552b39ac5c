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
"""Of one upsert: 1,048,576 components are 12 to 22 MB of JSON, beside which other attributes have so many bytes."""

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
    """Of vectors in Arrow."""
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
    others = [{name: own for name, own in v["attributes"].items() if name != "vector"} for v in vectors]
    columns = [
        pa.array([vector["id"] for vector in vectors], pa.string()),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(components.reshape(-1))),
        pa.array([orjson.dumps(own).decode() if own else None for own in others], pa.string()),
    ]
    return pa.record_batch(columns, schema=schema())


def matrix(vectors: list[Vector]) -> NDArray[np.float32]:
    """float32[vectors, dimension]."""
    return np.array([vector["attributes"]["vector"] for vector in vectors], dtype=np.float32)


def vectors_of_batch(batch: Any) -> Iterator[Vector]:
    """The vectors of a record batch. Raises ValueError for other columns."""
    if "id" not in batch.schema.names or "vector" not in batch.schema.names:
        raise ValueError(f"vectors need the columns 'id' and 'vector'; there are {', '.join(batch.schema.names)}")
    for row in batch.to_pylist():
        attributes = json.loads(row["attributes"]) if row.get("attributes") else {}
        yield {"id": row["id"], "attributes": {"vector": row["vector"], **attributes}}


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
        yield {"id": vector["id"], "attributes": vector["attributes"]}


def vectors_of_npy(path: Path, ids_path: Path) -> Iterator[Vector]:
    """The rows of a numpy file, with the ids that are the lines of a text. Raises ValueError."""
    rows = np.load(path, mmap_mode="r", allow_pickle=False)
    if rows.ndim != 2 or rows.dtype.kind not in "fi":
        raise ValueError(f"{path} has the shape {rows.shape} and the type {rows.dtype}; it must be a matrix of numbers")
    ids = ids_path.read_text().splitlines()
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
    """Vectors as upserts take them at a time."""
    batch: list[Vector] = []
    components = size = 0
    for vector in vectors:
        attributes = vector["attributes"]
        own = len(attributes.get("vector") or ())
        own_bytes = len(json.dumps({name: value for name, value in attributes.items() if name != "vector"}))
        is_full = len(batch) == BATCH_VECTORS or components + own > BATCH_COMPONENTS or size + own_bytes > BATCH_BYTES
        if batch and is_full:
            yield batch
            batch, components, size = [], 0, 0
        batch.append(vector)
        components += own
        size += own_bytes
    if batch:
        yield batch
