"""`triptych export` and `triptych import`: data of all areas to and from files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from coordinator.command_client import Client, CommandError
from coordinator.commands.connection import FILE, with_client

METRIC_FORMATS = ("jsonl", "csv", "arrow", "parquet")
LOG_FORMATS = ("jsonl", "arrow", "parquet")
VECTOR_FORMATS = (*LOG_FORMATS, "npy")
_SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".arrow": "arrow",
    ".parquet": "parquet",
    ".npy": "npy",
}


class Destination(click.Path):
    """A file, or - for standard output."""

    name = "FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return None if value == "-" else Path(value)


def _format(formats: tuple[str, ...]) -> Any:
    return click.option("--format", "kind", type=click.Choice(formats), help="(default: by the file's ending)")


def _kind(kind: str | None, path: Path | None, formats: tuple[str, ...]) -> str:
    """The format that was given, or that of the file's ending. Raises click.UsageError."""
    format_name = kind or (_SUFFIXES.get(path.suffix, "") if path is not None else "jsonl")
    if format_name not in formats:
        raise click.UsageError(f"the format of {path} is not known; give it with --format: {', '.join(formats)}")
    return format_name


@click.group("export", no_args_is_help=True)
def export() -> None:
    """Write samples, records or vectors of a running cluster to a file.

    \b
    triptych export metrics --match '{job="node"}' node.parquet
    triptych export log --prefix orders/ orders.jsonl
    triptych export vectors --collection notes notes.npy
    """


@export.command("metrics")
@click.argument("path", type=Destination(), metavar="FILE")
@click.option(
    "--match", multiple=True, required=True, metavar="SELECTOR", help="Select the series to export; may be repeated."
)
@click.option("--start", default="", help="Start at this time: RFC 3339, or Unix seconds.")
@click.option("--end", default="", help="End at this time.")
@_format(METRIC_FORMATS)
@with_client
def export_metrics(
    client: Client, path: Path | None, match: tuple[str, ...], start: str, end: str, kind: str | None
) -> int:
    """Export the stored samples of series. FILE gets its name when it is complete; - is standard output."""
    from coordinator.commands import transferring

    chosen = _kind(kind, path, METRIC_FORMATS)
    return transferring.export_samples(client, match, path, kind=chosen, start=start, end=end)


@export.command("log")
@click.argument("path", type=Destination(), metavar="FILE")
@click.option("--key", help="Only records of this key.")
@click.option("--prefix", help="Only records of keys with this prefix (default: all).")
@click.option("--start", type=int, help="Sequence number to start at.")
@click.option("--since", help="Start at this time: RFC 3339, or Unix seconds.")
@_format(LOG_FORMATS)
@with_client
def export_log(
    client: Client,
    path: Path | None,
    key: str | None,
    prefix: str | None,
    start: int | None,
    since: str | None,
    kind: str | None,
) -> int:
    """Export the records of the log in order, up to the newest that can be read now."""
    from coordinator.commands import transferring

    if key is not None and prefix is not None:
        raise click.UsageError("--key and --prefix exclude each other; give one")
    asked = {"key": key, "prefix": prefix, "start_seq": start, "start_time": since}
    parameters = {name: value for name, value in asked.items() if value is not None}
    chosen = _kind(kind, path, LOG_FORMATS)
    return transferring.export_log(client, path, kind=chosen, parameters=parameters)


@export.command("vectors")
@click.argument("path", type=Destination(), metavar="FILE")
@click.option("--collection", default="default", show_default=True, help="The collection.")
@click.option("--filter", "filter_text", help="Only vectors that match this filter, as JSON.")
@click.option("--ids", type=FILE, help="With npy: the file of the ids (default: FILE with the ending .ids).")
@_format(VECTOR_FORMATS)
@with_client
def export_vectors(
    client: Client, path: Path | None, collection: str, filter_text: str | None, ids: Path | None, kind: str | None
) -> int:
    """Export the vectors of a collection, with their attributes unless the format is npy."""
    from coordinator.commands import transferring

    try:
        condition = json.loads(filter_text) if filter_text else None
    except ValueError as error:
        raise CommandError(f"--filter is not JSON: {error}") from error
    chosen = _kind(kind, path, VECTOR_FORMATS)
    return transferring.export_vectors(
        client, path, kind=chosen, collection=collection, filter_=condition, ids_path=ids
    )


@click.group("import", no_args_is_help=True)
def import_() -> None:
    """Import files and Prometheus blocks into a running cluster.

    \b
    triptych import metrics /var/lib/prometheus/snapshots/20261123T120000Z-5e1f
    triptych import log orders.jsonl
    triptych import vectors --collection notes notes.npy
    """


@import_.command("metrics")
@click.argument("paths", type=FILE, nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--format", "kind", type=click.Choice(("openmetrics", *METRIC_FORMATS)), help="(default: by the file's ending)"
)
@click.option(
    "--columns",
    default="",
    metavar="TEXT",
    help="Columns of CSV without the header of an export: 1:label:host,2:metric:up,3:time:unix_s.",
)
@click.option(
    "--skip-lines", type=click.IntRange(0), default=0, help="With --columns: number of lines before the first row."
)
@click.option(
    "--state", type=FILE, help="File that records the progress of the import (default: beside the first PATH)."
)
@click.option("--restart", is_flag=True, help="Start over instead of resuming an earlier import.")
@with_client
def import_metrics(
    client: Client,
    paths: tuple[Path, ...],
    kind: str | None,
    columns: str,
    skip_lines: int,
    state: Path | None,
    restart: bool,
) -> int:
    """Import samples from files, from Prometheus TSDB blocks, and from directories of blocks such as snapshots.

    Samples that are imported twice are stored once. The exit code is 3 if some items were refused; standard error names
    them.
    """
    from coordinator.commands import transferring

    return transferring.import_samples(
        client, paths, sys.stdout.buffer, kind=kind, columns=columns, skips=skip_lines, state_path=state,
        begins_anew=restart,
    )  # fmt: skip


@import_.command("log")
@click.argument("path", type=FILE, metavar="FILE")
@click.option(
    "--producer",
    default="",
    metavar="NAME",
    help="Name of the producer that numbers the batches (default: one for the file).",
)
@_format(LOG_FORMATS)
@with_client
def import_log(client: Client, path: Path, producer: str, kind: str | None) -> int:
    """Append the records of a file. A repetition does not append them again."""
    from coordinator.commands import transferring

    chosen = _kind(kind, path, LOG_FORMATS)
    return transferring.import_log(client, path, sys.stdout.buffer, kind=chosen, producer=producer)


@import_.command("vectors")
@click.argument("path", type=FILE, metavar="FILE")
@click.option("--collection", default="default", show_default=True, help="The collection.")
@click.option("--ids", type=FILE, help="With npy: the file of the ids (default: FILE with the ending .ids).")
@_format(VECTOR_FORMATS)
@with_client
def import_vectors(client: Client, path: Path, collection: str, ids: Path | None, kind: str | None) -> int:
    """Upsert the vectors of a file."""
    from coordinator.commands import transferring

    chosen = _kind(kind, path, VECTOR_FORMATS)
    return transferring.import_vectors(
        client, path, sys.stdout.buffer, kind=chosen, collection=collection, ids_path=ids
    )
