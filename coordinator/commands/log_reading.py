"""`triptych log scan`, `tail` and `keys`."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import partial, wraps
from typing import Any, BinaryIO

import click

from coordinator import rfc_3339
from coordinator.command_client import Away, Client, CommandError, is_truncated
from coordinator.commands.connection import refuse_both, require_one, with_client
from coordinator.commands.output import json_option, write_json
from coordinator.commands.progress import Counting
from coordinator.commands.repeating import until_answered

PAGE_RECORDS = 10_000
FOLLOW_S = 30

Function = Callable[..., Any]
Parameters = dict[str, str | int]

_READING_OPTIONS = (
    click.option("--key", help="Read the records of this key."),
    click.option("--prefix", help="Read the records of all keys with this prefix; '': all keys."),
    click.option("--start", type=int, metavar="N", help="Sequence number to start at."),
    click.option("--since", metavar="TIME", help="Start at this time: RFC 3339, or Unix seconds."),
    click.option("--times", is_flag=True, help="Also print the time at which each record was appended."),
    click.option("--limit", type=int, metavar="N", help="Stop after this many records."),
    click.option("--grep", metavar="PATTERN", help="Only records with a line that matches this RE2 expression."),
    click.option("--grep-not", metavar="PATTERN", help="Only records without such a line."),
    click.option("--where", metavar="CONDITION", help="Only JSON records that meet it: '$.level = \"error\"'."),
    click.option(
        "--json", "as_json", is_flag=True, help="Print records as JSON, as the server returns them, one on each line."
    ),
    click.option("--values", is_flag=True, help="Print only values, without sequence numbers and keys."),
    click.option(
        "--encoding",
        type=click.Choice(["json", "text", "base64"]),
        default="base64",
        help="With --json: the encoding of keys and values (default: base64).",
    ),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """The options of `_READING_OPTIONS`."""

    key: str | None
    prefix: str | None
    start: int | None
    since: str | None
    times: bool
    limit: int | None
    grep: str | None
    grep_not: str | None
    where: str | None
    as_json: bool
    values: bool
    encoding: str

    def __post_init__(self) -> None:
        require_one(key=self.key, prefix=self.prefix)
        refuse_both(json=self.as_json, values=self.values)

    def selection(self) -> Parameters:
        """The parameters that select the keys."""
        name, text = ("prefix_base64", self.prefix or "") if self.key is None else ("key_base64", self.key)
        return {name: _base64(text)}

    def parameters(self) -> Parameters:
        """The parameters that select the records and their form, except sequence numbers and times."""
        asked = {"grep": self.grep, "grep_not": self.grep_not, "where": self.where}
        parameters: Parameters = {name: text for name, text in asked.items() if text is not None}
        if self.as_json:
            parameters["encoding"] = self.encoding
        return {**self.selection(), **parameters}

    def scanned(self, client: Client, **parameters: str | int) -> Any:
        """The response to a scan; with --json, each record is the bytes that the server sent."""
        if not self.as_json:
            return client.call("GET", "/api/v1/log/scan", **parameters)
        import msgspec

        body = client.octets("/api/v1/log/scan", **parameters)
        try:
            answer = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            records = msgspec.json.decode(answer.pop("records"), type=list[msgspec.Raw])
            return {name: msgspec.json.decode(content) for name, content in answer.items()} | {"records": records}
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, RecursionError) as error:
            refusal = Away if is_truncated(body) else CommandError
            raise refusal(f"{client.url} answers with what is not the JSON of a scan: {error!r}") from error

    def page(self, read: int) -> int:
        """The number of records to request next when `read` records have been read; 0: no more."""
        return PAGE_RECORDS if self.limit is None else max(0, min(PAGE_RECORDS, self.limit - read))

    def write(self, records: list[Any], output: BinaryIO) -> None:
        for record in records:
            output.write(self._line(record) + b"\n")

    def _line(self, record: Any) -> bytes:
        if self.as_json:
            return bytes(record)
        value = base64.b64decode(record["value"])
        when = _when(record) + b"\t" if self.times else b""
        if self.values:
            return when + value
        end = b"\ttombstone" if record.get("tombstone") else b""
        return b"%d\t%b%b\t%b%b" % (record["sequence"], when, base64.b64decode(record["key"]), value, end)


def _reading(function: Function) -> Function:
    """Adds the options, which the function gets as one `Reading`."""

    @wraps(function)
    def read(client: Client, **options: Any) -> Any:
        reading = Reading(**{field.name: options.pop(field.name) for field in fields(Reading)})
        return function(client, reading, **options)

    command = with_client(read)
    for option in reversed(_READING_OPTIONS):
        command = option(command)
    return command


@click.command()
@_reading
def tail(client: Client, reading: Reading) -> None:
    """Print records as they are appended.

    Starts now, or at --start or --since, and runs until it is interrupted. While the cluster is down, the request is
    retried; printing then resumes after the last record that was printed.
    """
    parameters = reading.parameters()
    start = _tail_start(client, reading)
    read = 0
    while limit := reading.page(read):
        follow: Parameters = {"start_seq": start, "follow": "true", "timeout": FOLLOW_S, "limit": limit}
        ask = partial(reading.scanned, client, **parameters, **follow)
        answer = until_answered(ask, going_on=f"resuming at sequence number {start}")
        _warn(answer)
        reading.write(answer["records"], sys.stdout.buffer)
        sys.stdout.buffer.flush()
        start = answer["nextSequence"]
        read += len(answer["records"])


def _tail_start(client: Client, reading: Reading) -> int:
    now: int = client.call("GET", "/api/v1/log/frontier")["readableSequence"]  # fails if there is no cluster
    if reading.start is not None:
        return reading.start
    if not reading.since:
        return now
    sequence: int = client.call("GET", "/api/v1/log/offsets", time=reading.since, **reading.selection())["sequence"]
    return sequence


@click.command()
@click.option("--end", type=int, metavar="N", help="Stop before this sequence number.")
@click.option("--until", metavar="TIME", help="Stop before this time.")
@click.option("--reverse", is_flag=True, help="Newest first (with --key).")
@_reading
def scan(client: Client, reading: Reading, end: int | None, until: str | None, reverse: bool) -> None:
    """Print the records of a key, or of the keys with a prefix, in order."""
    times = {"start_time": reading.since, "end_time": until, "reverse": "true" if reverse else ""}
    parameters = {**reading.parameters(), **{name: text for name, text in times.items() if text}}
    start = reading.start
    with Counting("records read", beside_output=True) as progress:
        while limit := reading.page(progress.count):
            bounds = {"start_seq": start, "end_seq": end}
            given_bounds = {name: number for name, number in bounds.items() if number is not None}
            answer = reading.scanned(client, **parameters, **given_bounds, limit=limit)
            _warn(answer)
            reading.write(answer["records"], sys.stdout.buffer)
            progress.add(len(answer["records"]))
            following = answer["nextSequence"]
            # An answer that ended early may have no records although further records follow.
            ended_early = "warnings" in answer or "infos" in answer
            if not answer["records"] and (not ended_early or following == (end if reverse else start)):
                break
            start, end = (start, following) if reverse else (following, end)


@click.command()
@click.option("--prefix", help="Only keys with this prefix (default: all).")
@click.option("--limit", type=int, metavar="N", help="Stop after this many keys.")
@json_option
@with_client
def keys(client: Client, prefix: str | None, limit: int | None, as_json: bool) -> None:
    """Print the keys in order."""
    parameters: Parameters = {"prefix_base64": _base64(prefix or "")}
    keys_left = limit
    while keys_left is None or keys_left > 0:
        parameters["limit"] = PAGE_RECORDS if keys_left is None else min(keys_left, PAGE_RECORDS)
        answer = client.call("GET", "/api/v1/log/keys", **parameters)
        _warn(answer)
        if as_json:
            write_json(answer)
        else:
            sys.stdout.buffer.writelines(base64.b64decode(entry["key"]) + b"\n" for entry in answer["keys"])
        if not answer["more"]:
            return
        parameters["after_base64"] = answer["keys"][-1]["key"]
        keys_left = None if keys_left is None else keys_left - len(answer["keys"])


def _base64(text: str) -> str:
    return base64.b64encode(os.fsencode(text)).decode()


def _warn(answer: Mapping[str, Any]) -> None:
    """Write the response's warnings to standard error, apart from the records."""
    for text in answer.get("warnings", ()):
        sys.stderr.write(f"warning: {text}\n")


def _when(record: Mapping[str, Any]) -> bytes:
    """When the record was appended, as RFC 3339 text in UTC; "-" if that is unknown."""
    if "timeMs" not in record:
        return b"-"
    return rfc_3339.time_text(record["timeMs"] / 1000).encode()
