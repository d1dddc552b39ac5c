"""`triptych vector upsert`: writes vectors from JSON lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from io import BufferedReader
from typing import Any

import click

from coordinator.command_client import Away, Client, CommandError
from coordinator.commands.connection import with_client
from coordinator.commands.lines import read_lines
from coordinator.commands.output import write_json
from coordinator.commands.progress import Counting, size_of
from coordinator.commands.repeating import PATIENCE_S, until_answered
from coordinator.commands.vector_items import collection_option
from coordinator.plurals import counted

PATH = "/api/v1/vector/write"
BATCH_VECTORS = 1000


@click.command()
@click.argument("lines", type=click.File("rb"), default="-", metavar="[FILE]")
@collection_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as one line of JSON.")
@with_client
def upsert(client: Client, lines: BufferedReader, collection: str, as_json: bool) -> None:
    """Write vectors from JSON lines in FILE, or from standard input. Vectors with the same ids are replaced.

    Each line has an id, a vector and its attributes. While the cluster is down, a batch is retried for a minute; a
    repeated batch changes nothing. A batch with an invalid line is refused and ends the command; earlier batches stay
    stored.

    \b
    {"id": "apple", "vector": [0.9, 0.1, 0.0], "kind": "fruit"}
    {"id": "plane", "attributes": {"vector": [0.0, 0.2, 0.9], "kind": "machine"}}
    """
    with Counting("vectors upserted", size_of(lines)) as progress:
        for batch in _batches(lines):
            progress.add(_write(client, collection, batch), batch.size_bytes)
    if as_json:
        write_json({"vectorsUpserted": progress.count})
    else:
        click.echo(counted(progress.count, "vectors upserted"))


@dataclass(slots=True)
class UpsertBatch:
    """`first`: the line of its first vector. `vectors`: in the form that a request has."""

    first: int
    vectors: list[dict[str, Any]] = field(default_factory=list)
    size_bytes: int = 0


def _write(client: Client, collection: str, batch: UpsertBatch) -> int:
    body = {"collection": collection, "upsertVectors": batch.vectors}
    try:
        answer = until_answered(partial(client.call, "POST", PATH, body), patience_s=PATIENCE_S)
    except Away:
        raise
    except CommandError as error:
        raise CommandError(f"the batch that begins at line {batch.first} is refused: {error}") from error
    upserted: int = answer["vectorsUpserted"]
    return upserted


def _batches(stream: BufferedReader) -> Iterator[UpsertBatch]:
    for lines in read_lines(stream):
        batch = UpsertBatch(lines[0][0] if lines else 0)
        for number, line in lines:
            if not line.strip():
                continue
            if len(batch.vectors) >= BATCH_VECTORS:
                yield batch
                batch = UpsertBatch(number)
            batch.vectors.append(_vector(number, line))
            batch.size_bytes += len(line)
        if batch.vectors:
            yield batch


def _vector(number: int, line: bytes) -> dict[str, Any]:
    """A line in the form that a request has. Raises CommandError."""
    import msgspec

    try:
        content = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"line {number} is not a JSON object: {error}") from error
    if "id" not in content:
        raise CommandError(f"line {number} has no id")
    name = content.pop("id")
    nested = content.get("attributes")
    return {"id": name, "attributes": nested if isinstance(nested, dict) and len(content) == 1 else content}
