"""`triptych log append`: appends a record for each line of standard input."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import click

from coordinator.command_client import Client, CommandError
from coordinator.commands.connection import refuse_both, require_one, with_client
from coordinator.commands.progress import Counting, size_of
from coordinator.plurals import counted

BATCH_RECORDS = 1000
BATCH_BYTES = 6 << 20
"""Size of the lines in a batch; in base64 they take 8 MiB."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """How a line becomes a record: the whole line is a value of `key`, or `separator` stands between key and value."""

    key: str | None
    separator: str | None
    is_json: bool


@click.command()
@click.option("--key", help="The key of every record.")
@click.option("--separator", metavar="TEXT", help="Each line has a key and a value, separated by this text.")
@click.option("--json", "is_json", is_flag=True, help="The values are JSON; any other value is an error.")
@click.option("--tombstone", is_flag=True, help="Append a tombstone for the key instead of reading lines.")
@click.option("--no-wait", is_flag=True, help="Do not wait until the records are on disk.")
@with_client
def append(
    client: Client, key: str | None, separator: str | None, is_json: bool, tombstone: bool, no_wait: bool
) -> None:
    """Append a record for each line of standard input.

    With --separator, each line has a key and a value. With --json, values are stored without insignificant white
    space.
    """
    require_one(key=key, separator=separator)
    refuse_both(json=is_json, tombstone=tombstone)
    if separator == "":
        raise click.UsageError("--separator is ''; it must be the text between key and value, such as '='")
    lines = sys.stdin.buffer
    records = iter([_tombstone(key)]) if tombstone else _records(lines, Form(key, separator, is_json))
    appended = 0
    with Counting("records appended", None if tombstone else size_of(lines)) as progress:
        for batch, size_bytes in _batches(records):
            answer = client.call("POST", "/api/v1/log/append", {"records": batch, "awaitDurable": not no_wait})
            appended += answer["recordsAppended"]
            progress.add(answer["recordsAppended"], size_bytes)
    click.echo(counted(appended, "records appended"))


def _tombstone(key: str | None) -> tuple[Record, int]:
    if key is None:
        raise CommandError("--tombstone needs --key; it reads no lines")
    return {"key": base64.b64encode(os.fsencode(key)).decode(), "tombstone": True}, 0


def _records(lines: Iterable[bytes], form: Form) -> Iterator[tuple[Record, int]]:
    """Yields (record, bytes of its line)."""
    separator = os.fsencode(form.separator or "")
    for number, line in enumerate(lines, 1):
        value = line.rstrip(b"\n")
        key = os.fsencode(form.key or "")
        if separator:
            key, matched, value = value.partition(separator)
            if not matched:
                raise CommandError(f"line {number} has no {form.separator!r} between key and value")
        if form.is_json:
            value = _compact_json(value, number)
        yield {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}, len(line)


def _compact_json(value: bytes, number: int) -> bytes:
    import msgspec

    try:
        value.decode()
        return msgspec.json.format(value, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"the value of line {number} is not JSON: {error}") from error


def _batches(records: Iterator[tuple[Record, int]]) -> Iterator[tuple[list[Record], int]]:
    """Yields (batch, bytes of its lines), batches as large as one request may be. Input from a terminal is slow, and is
    sent line by line."""
    is_slow = sys.stdin.isatty()
    while first := next(records, None):
        batch, size_bytes = [first[0]], first[1]
        later_records = islice(records, 0 if is_slow else BATCH_RECORDS - 1)
        while size_bytes < BATCH_BYTES and (following := next(later_records, None)):
            batch.append(following[0])
            size_bytes += following[1]
        yield batch, size_bytes
