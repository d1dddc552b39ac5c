"""`triptych serve` starts the service. `triptych log append|tail|scan|keys` uses the log from a shell, through the HTTP
interface only. `triptych check` reports damage in a data directory that is not in use, `triptych doctor` what is
wrong with the machine, the settings, the data directory and a running cluster. `triptych token` makes a token,
`triptych warm` compiles the kernels."""

from __future__ import annotations

import argparse
import base64
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from coordinator import check, command_client, group_commands, serve_command, token_command, warm
from coordinator.backup import command as backup
from coordinator.backup.inventory import BackupError
from coordinator.command_client import Away, Client, CommandError
from coordinator.doctor import report
from coordinator.version import VERSION

BATCH_RECORDS = 1000
BATCH_BYTES = 8 << 20
PAGE_RECORDS = 10_000
FOLLOW_S = 30
PROGRESS_EVERY = 10_000
BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.1, 5.0
"""How long `tail` waits before it asks again a cluster that is away: twice as long each time."""


def _text(data: str) -> str:
    return base64.b64encode(os.fsencode(data)).decode()


def append(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    """Append one record per line of the input. With --separator, a line has the key and the value. With --json, a value
    is JSON, and is stored without the white space around its parts. With --tombstone, append a tombstone of the key."""
    total = 0
    progress = _Progress("records appended")
    records = iter([_tombstone(arguments)]) if arguments.tombstone else _records(lines, arguments)
    for batch in _batches(records):
        body = {"records": batch, "awaitDurable": not arguments.no_wait}
        answer = client.call("POST", "/api/v1/log/append", body)
        total += answer["recordsAppended"]
        progress.at(total)
    progress.end(total)
    output.write(b"%d records appended\n" % total)


def _tombstone(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.key is None:
        raise CommandError("--tombstone needs --key; it reads no lines")
    return {"key": _text(arguments.key), "tombstone": True}


def _records(lines: Iterable[bytes], arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    separator = os.fsencode(arguments.separator) if arguments.separator else b""
    for number, line in enumerate(lines, 1):
        value = line.rstrip(b"\n")
        key = os.fsencode(arguments.key or "")
        if separator:
            key, matched, value = value.partition(separator)
            if not matched:
                raise CommandError(f"line {number} has no {arguments.separator!r} between key and value")
        if arguments.json:
            value = _compact_json(value, number)
        yield {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}


def _compact_json(value: bytes, number: int) -> bytes:
    try:
        value.decode()
        return msgspec.json.format(value, indent=-1)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"the value of line {number} is not JSON: {error}") from error


def _batches(records: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Batches as large as one request may be. Input from a terminal is slow and is sent line by line."""
    slow = sys.stdin.isatty()
    while batch := list(islice(records, 1)):
        size = len(batch[0].get("value", ""))
        while not slow and len(batch) < BATCH_RECORDS and size < BATCH_BYTES:
            record = next(records, None)
            if record is None:
                break
            batch.append(record)
            size += len(record["value"])
        yield batch


def scan(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    left = arguments.limit
    parameters = _selection(arguments)
    if arguments.since:
        parameters["start_time"] = arguments.since
    if arguments.until:
        parameters["end_time"] = arguments.until
    if arguments.reverse:
        parameters["reverse"] = "true"
    start, end = arguments.start, arguments.end
    progress = _Progress("records read")
    read = 0
    while left is None or read < left:
        if start is not None:
            parameters["start_seq"] = start
        if end is not None:
            parameters["end_seq"] = end
        parameters["limit"] = PAGE_RECORDS if left is None else min(PAGE_RECORDS, left - read)
        answer = client.call("GET", "/api/v1/log/scan", **parameters)
        _warn(answer)
        _write(answer["records"], arguments, output)
        read += len(answer["records"])
        progress.at(read)
        following = answer["nextSequence"]
        # An answer that ended early may have no records although further records follow.
        ended_early = "warnings" in answer or "infos" in answer
        if not answer["records"] and (not ended_early or following == (end if arguments.reverse else start)):
            break
        if arguments.reverse:
            end = following
        else:
            start = following
    progress.end(read)


def tail(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    """New records as they come, from now or from --start, until interrupted. While the cluster is away, it is asked
    again and again, and then the next record comes that was not printed yet."""
    parameters = _selection(arguments)
    now = client.call("GET", "/api/v1/log/frontier")["readableSequence"]  # also says whether there is a cluster at all
    start = now if arguments.start is None else arguments.start
    if arguments.start is None and arguments.since:
        start = client.call("GET", "/api/v1/log/offsets", time=arguments.since, **parameters)["sequence"]
    left, back_off_s = arguments.limit, 0.0
    while left is None or left > 0:
        limit = PAGE_RECORDS if left is None else min(left, PAGE_RECORDS)
        try:
            answer = client.call(
                "GET", "/api/v1/log/scan", **parameters, start_seq=start, follow="true", timeout=FOLLOW_S, limit=limit
            )
        except Away as error:
            if not back_off_s:
                sys.stderr.write(f"triptych: {error}; trying again\n")
            back_off_s = min(BACK_OFF_MAX_S, 2 * back_off_s) or BACK_OFF_FIRST_S
            time.sleep(back_off_s)
            continue
        if back_off_s:
            sys.stderr.write(f"triptych: going on at sequence number {start}\n")
            back_off_s = 0.0
        _warn(answer)
        _write(answer["records"], arguments, output)
        output.flush()
        start = answer["nextSequence"]
        left = None if left is None else left - len(answer["records"])


def keys(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    parameters: dict[str, str | int] = {"prefix_base64": _text(arguments.prefix or "")}
    left = arguments.limit
    while left is None or left > 0:
        parameters["limit"] = PAGE_RECORDS if left is None else min(left, PAGE_RECORDS)
        answer = client.call("GET", "/api/v1/log/keys", **parameters)
        _warn(answer)
        for entry in answer["keys"]:
            output.write(base64.b64decode(entry["key"]) + b"\n")
        if not answer["more"]:
            return
        parameters["after_base64"] = answer["keys"][-1]["key"]
        left = None if left is None else left - len(answer["keys"])


def _warn(answer: dict[str, Any]) -> None:
    """Write the answer's warnings to the error stream, where they do not mix with the records."""
    for text in answer.get("warnings", ()):
        sys.stderr.write(f"warning: {text}\n")


def _selection(arguments: argparse.Namespace) -> dict[str, str | int]:
    asked = {"grep": arguments.grep, "grep_not": arguments.grep_not, "where": arguments.where}
    parameters: dict[str, str | int] = {name: text for name, text in asked.items() if text is not None}
    if arguments.json:
        parameters["encoding"] = arguments.encoding
    if arguments.key is not None:
        return {"key_base64": _text(arguments.key), **parameters}
    return {"prefix_base64": _text(arguments.prefix or ""), **parameters}


def _write(records: list[dict[str, Any]], arguments: argparse.Namespace, output: BinaryIO) -> None:
    for record in records:
        if arguments.json:
            output.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            continue
        value = base64.b64decode(record["value"])
        when = _when(record) + b"\t" if arguments.times else b""
        if arguments.values:
            output.write(when + value + b"\n")
        else:
            end = b"\ttombstone\n" if record.get("tombstone") else b"\n"
            output.write(b"%d\t%b%b\t%b%b" % (record["sequence"], when, base64.b64decode(record["key"]), value, end))


def _when(record: dict[str, Any]) -> bytes:
    """When the record was appended, as RFC 3339 text in UTC; "-" if that is unknown."""
    if "timeMs" not in record:
        return b"-"
    moment = datetime.fromtimestamp(record["timeMs"] / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


class _Progress:
    """Shows a count on the error stream if that is a terminal and the output is not."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = sys.stderr.isatty() and not sys.stdout.isatty()
        self._next = PROGRESS_EVERY

    def at(self, count: int) -> None:
        if self._shown and count >= self._next:
            sys.stderr.write(f"\r{count:,} {self._what}")
            sys.stderr.flush()
            self._next = count + PROGRESS_EVERY

    def end(self, count: int) -> None:
        if self._shown and count >= PROGRESS_EVERY:
            sys.stderr.write(f"\r{count:,} {self._what}\n")


Command = Callable[[Client, argparse.Namespace, BinaryIO, BinaryIO], None]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="triptych",
        description="Metrics, logs and vectors in one service. `triptych serve` starts it; `triptych COMMAND --help` "
        "says more.",
    )
    parser.add_argument("--version", action="version", version=f"triptych {VERSION}")
    areas = parser.add_subparsers(required=True, metavar="AREA", dest="area")
    serve_command.add_options(
        areas.add_parser(
            "serve",
            help="start the service",
            description=serve_command.DESCRIPTION,
            epilog=serve_command.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    log = areas.add_parser("log", help="the append-only log").add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Command, text: str) -> argparse.ArgumentParser:
        added = log.add_parser(name, help=text, description=text)
        command_client.add_options(added)
        added.set_defaults(run=run)
        return added

    appending = command("append", append, "append a record of every line of the standard input")
    key = appending.add_mutually_exclusive_group(required=True)
    key.add_argument("--key", help="of every record")
    key.add_argument("--separator", help="key and value are on the line, with this text between them")
    form = appending.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="the values are JSON; another line is an error")
    form.add_argument("--tombstone", action="store_true", help="append a tombstone of the key, and read no lines")
    appending.add_argument("--no-wait", action="store_true", help="do not wait until the records are on disk")
    for name, run, text in (
        ("tail", tail, "print records as they are appended"),
        ("scan", scan, "print the records of a key, or of the keys with a prefix, in order"),
    ):
        reading = command(name, run, text)
        chosen = reading.add_mutually_exclusive_group(required=True)
        chosen.add_argument("--key")
        chosen.add_argument("--prefix", help="'' means all keys")
        reading.add_argument("--start", type=int, help="sequence number to begin at")
        reading.add_argument("--since", help="begin at this time: RFC 3339, or Unix seconds")
        reading.add_argument("--times", action="store_true", help="also print when each record was appended")
        reading.add_argument("--limit", type=int, help="stop after this many records")
        reading.add_argument(
            "--grep", metavar="PATTERN", help="only records with a line that this RE2 expression finds"
        )
        reading.add_argument("--grep-not", metavar="PATTERN", help="only records without such a line")
        reading.add_argument("--where", metavar="CONDITION", help="only JSON that satisfies it: '$.level = \"error\"'")
        form = reading.add_mutually_exclusive_group()
        form.add_argument("--json", action="store_true", help="records as the interface sends them, one a line")
        form.add_argument("--values", action="store_true", help="values only, without sequence number and key")
        reading.add_argument(
            "--encoding", choices=("json", "text", "base64"), default="base64", help="of keys and values with --json"
        )
        if run is scan:
            reading.add_argument("--end", type=int, help="sequence number to stop before")
            reading.add_argument("--until", help="stop before this time")
            reading.add_argument("--reverse", action="store_true", help="newest first (with --key)")
    group_commands.add(command)
    listing = command("keys", keys, "print the keys, in order")
    listing.add_argument("--prefix")
    listing.add_argument("--limit", type=int)
    text = (
        "say what is damaged in a data directory that is not in use; exit code 0: nothing, 1: something, 2: not checked"
    )
    checking = areas.add_parser("check", help="look for damage in a data directory", description=text)
    data = os.environ.get("TRIPTYCH_DATA", "data")
    checking.add_argument("data", nargs="?", type=Path, default=Path(data), help="(default: TRIPTYCH_DATA, or ./data)")
    checking.add_argument("--json", action="store_true", help="for programs")
    backup.add(areas, data)
    text = (
        "say what is wrong with the machine, the settings, the data directory and, with --url, a running cluster; "
        "exit code 0: no problem, 1: a problem, 2: wrong arguments"
    )
    looking = areas.add_parser("doctor", help="look for what causes trouble", description=text)
    looking.add_argument("data", nargs="?", type=Path, help="(default: TRIPTYCH_DATA, or ./data)")
    command_client.add_options(looking, url_default=None)
    looking.add_argument("--json", action="store_true", help="for programs")
    text = "compile all kernels into the cache on disk: once for each version, before it is started; takes some minutes"
    areas.add_parser("warm", help="prepare the first start of a version", description=text)
    text = "make a bearer token; it is shown once, and the file that TRIPTYCH_TOKENS names has only its hash"
    token_command.add_options(areas.add_parser("token", help="make a bearer token", description=text))
    return parser


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 for an error (one line on the error stream), 130 when interrupted. Those of `check` are in
    `coordinator.check`."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.area == "serve":
            return serve_command.run(arguments)
        if arguments.area == "check":
            return check.run(arguments.data, as_json=arguments.json)
        if arguments.area == "doctor":
            return report.run(arguments.data, arguments.url, lambda: Client.of(arguments), as_json=arguments.json)
        if arguments.area == "warm":
            return warm.run()
        if arguments.area == "token":
            return token_command.run(arguments)
        if arguments.area == "backup":
            return backup.run_backup(Client.of(arguments), arguments, sys.stdout)
        if arguments.area == "restore":
            return backup.run_restore(arguments, sys.stdout)
        arguments.run(Client.of(arguments), arguments, sys.stdin.buffer, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    except (CommandError, BackupError) as error:
        sys.stderr.write(f"triptych: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of the output, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        sys.stderr.write(f"triptych: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
