"""Records of the log in files: JSON lines as a scan answers, Arrow and Parquet.

The columns of Arrow and Parquet are `sequence`, `key`, `value` (null for a tombstone), `time`, `contentType` and
`headers`. An import appends the records in the order of the file; they get new sequence numbers and times. Its batches
have numbers of a producer, so a batch that is sent twice is appended once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from coordinator.command_client import Client, CommandError
from coordinator.transfer.arrow import library

PAGE_RECORDS_FIRST, PAGE_GROWTH, PAGE_RECORDS, PAGE_BYTES = 16, 8, 5_000, 16 << 20
"""The limit on a page, which is held in memory as a whole, several times. The size of the values of the next page is
estimated from the pages before."""
BATCH_RECORDS, BATCH_BYTES = 5_000, 16 << 20
"""Limits of one append. Bytes are counted as if no character took more than one."""
BODY_BYTES = (64 << 20) - 4096
"""What the server accepts by default, less room for the rest of a request."""
_KNOWN = ("key", "keyText", "value", "text", "json", "headers", "contentType", "tombstone")
_TEXTS = ("key", "keyText", "value", "text")

Record = dict[str, Any]


def scanned(client: Client, parameters: dict[str, str | int], warnings: dict[str, None]) -> Iterator[list[Record]]:
    """The records that a scan with these parameters finds, page by page. The cluster's warnings about missing records
    are added to `warnings`. Raises CommandError when a scan makes no progress."""
    end = client.call("GET", "/api/v1/log/frontier")["readableSequence"]
    asked = {"end_seq": end, **parameters, "limit": PAGE_RECORDS_FIRST}
    if not asked.keys() & {"key", "key_base64", "prefix", "prefix_base64"}:
        asked["prefix_base64"] = ""
    while True:
        page = client.call("GET", "/api/v1/log/scan", **asked)
        warnings.update(dict.fromkeys(page.get("warnings", ())))
        if "warnings" in page and page["nextSequence"] <= int(asked.get("start_seq", -1)):
            raise CommandError("; ".join(page["warnings"]))
        if page["records"]:
            yield page["records"]
            asked["limit"] = _next_limit(page["records"])
        following = page["nextSequence"]
        if following >= int(asked["end_seq"]) or (not page["records"] and "warnings" not in page):
            return
        asked["start_seq"] = following


def _next_limit(records: list[Record]) -> int:
    """How many records of this size a page may have."""
    size = sum(len(record.get("value", "")) for record in records)
    return max(1, min(PAGE_RECORDS, PAGE_GROWTH * len(records), PAGE_BYTES * len(records) // max(size, 1)))


def schema() -> Any:
    """The schema of records in Arrow."""
    pa = library()
    return pa.schema(
        [
            pa.field("sequence", pa.int64()),
            pa.field("key", pa.binary(), nullable=False),
            pa.field("value", pa.binary()),
            pa.field("time", pa.timestamp("ms", tz="UTC")),
            pa.field("contentType", pa.string()),
            pa.field("headers", pa.map_(pa.string(), pa.string())),
        ]
    )


def record_batch(records: list[Record]) -> Any:
    """Records of a scan with the encoding base64 as a record batch."""
    pa = library()
    rows = [
        {
            "sequence": record["sequence"],
            "key": base64.b64decode(record["key"]),
            "value": None if record.get("tombstone") else base64.b64decode(record["value"]),
            "time": record.get("timeMs"),
            "contentType": record.get("contentType"),
            "headers": list(record["headers"].items()) if "headers" in record else None,
        }
        for record in records
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema())


def records_of_batch(batch: Any) -> Iterator[Record]:
    """The records of a record batch, as an append takes them. Raises ValueError for wrong columns."""
    if "key" not in batch.schema.names or "value" not in batch.schema.names:
        raise ValueError(f"records need the columns 'key' and 'value'; there are {', '.join(batch.schema.names)}")
    for row in batch.to_pylist():
        record: Record = {"key": _base64(row["key"], "key")}
        if row["value"] is None:
            record["tombstone"] = True
        else:
            record["value"] = _base64(row["value"], "value")
        if row.get("headers"):
            record["headers"] = _headers(row["headers"])
        if row.get("contentType"):
            record["contentType"] = row["contentType"]
        yield record


def _headers(pairs: Any) -> dict[str, Any]:
    try:
        return dict(pairs)
    except (ValueError, TypeError):
        raise ValueError(f"the column 'headers' has {pairs!r:.40}; it must have maps of texts") from None


def _base64(data: Any, column: str) -> str:
    if not isinstance(data, bytes | str):
        raise ValueError(f"the column {column!r} has {data!r:.40}; it must have bytes or texts")
    return base64.b64encode(data.encode() if isinstance(data, str) else data).decode()


def records_of_lines(lines: Iterable[bytes]) -> Iterator[Record]:
    """The records of JSON lines, as an append takes them. Raises ValueError with the number of a line that is wrong."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is no JSON: {error}") from None
        if not isinstance(record, dict) or not ("key" in record or "keyText" in record):
            raise ValueError(f"line {number} is no record: it must be an object with `key` or `keyText`")
        fields = {name: record[name] for name in _KNOWN if name in record}
        if fields.get("tombstone"):
            fields.pop("value", None)
        for name in _TEXTS:
            if not isinstance(fields.get(name, ""), str) and not (name == "key" and isinstance(fields[name], dict)):
                value_text = json.dumps(fields[name])[:40]
                raise ValueError(f"line {number} is no record: its `{name}` is {value_text}, which is no text")
        yield fields


def batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in the batches of appends. The batches of a file must begin at the same records in every release, because
    they are numbered and an import may have begun with an earlier release. So only a batch that no server accepts by
    default is divided further: no import has ever got past such a batch."""
    for batch in _counted(records):
        if _json_bytes(batch) <= BODY_BYTES:
            yield batch
        else:
            yield from _divided(batch)


def _counted(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Records in batches of about BATCH_BYTES."""
    batch: list[Record] = []
    size = 0
    for record in records:
        record_bytes = (
            len(record.get("value", "")) + len(record.get("key", "")) if "json" not in record else _json_bytes(record)
        )
        if batch and (len(batch) == BATCH_RECORDS or size + record_bytes > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += record_bytes + len(record.get("text", "")) + 100
    if batch:
        yield batch


def _divided(batch: list[Record]) -> Iterator[list[Record]]:
    """The records of a batch in smaller batches, of BATCH_BYTES in a request unless one record has more."""
    part: list[Record] = []
    size = 0
    for record in batch:
        record_bytes = _json_bytes(record) + len(", ")
        if part and size + record_bytes > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(record)
        size += record_bytes
    yield part


def _json_bytes(content: Record | list[Record]) -> int:
    """The bytes of the record in a request, where a character that is not ASCII takes 6 or 12 bytes."""
    return len(json.dumps(content))


def read(path: Path, kind: str) -> Iterator[Record]:
    """The records of a file. Raises ValueError, OSError."""
    if kind == "jsonl":
        with open(path, "rb") as file:
            yield from records_of_lines(file)
        return
    for batch in arrow_batches(path, kind):
        yield from records_of_batch(batch)


def arrow_batches(path: Path, kind: str) -> Iterator[Any]:
    """The record batches of an Arrow stream or a Parquet file, with a bounded number of rows. Raises ValueError."""
    pa = library()
    try:
        if kind == "parquet":
            import pyarrow.parquet as pq

            yield from pq.ParquetFile(path).iter_batches(BATCH_RECORDS)
            return
        with pa.OSFile(str(path), "rb") as file:
            for batch in pa.ipc.open_stream(file):
                for first in range(0, batch.num_rows, BATCH_RECORDS):
                    yield batch.slice(first, BATCH_RECORDS)
    except pa.ArrowException as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
