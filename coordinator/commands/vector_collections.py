"""`triptych vector collections`, `create` and `drop`."""

from __future__ import annotations

import urllib.parse
from typing import Any

import click

from coordinator.command_client import Client
from coordinator.commands.connection import with_client
from coordinator.commands.output import json_option, tell, write_json, write_table
from coordinator.commands.progress import bytes_text

PATH = "/api/v1/vector/collections"


@click.command()
@json_option
@with_client
def collections(client: Client, as_json: bool) -> int:
    """Print the collections with their settings and numbers of vectors."""
    answer = client.call("GET", "/api/v1/vector/stats")
    if as_json:
        write_json(answer)
    else:
        columns = ("collection", "vectors", "dimension", "metric", "storage", "index", "memory", "text fields")
        rows = (_row(name, one) for name, one in sorted(answer["collections"].items()))
        write_table(columns, rows, right=("vectors", "dimension", "memory"))
    return tell(answer)


def _row(name: str, one: dict[str, Any]) -> tuple[str, ...]:
    fields = ", ".join(field if isinstance(field, str) else field["field"] for field in one["textFields"])
    numbers = (str(one["vectors"]), str(one["dimension"]))
    return name, *numbers, one["metric"], one["storage"], one["index"], bytes_text(one["bytes"]), fields


@click.command()
@click.argument("name")
@click.option(
    "--dimension", type=click.IntRange(1), required=True, metavar="N", help="Number of components of each vector."
)
@click.option("--metric", metavar="NAME", help="cosine, dot or l2 (default: TRIPTYCH_VECTOR_METRIC of the server).")
@click.option("--storage", metavar="NAME", help="f32, f16, i8 or b1 (default: TRIPTYCH_VECTOR_STORAGE of the server).")
@click.option("--index", metavar="NAME", help="lists or graph (default: lists, and graph for b1).")
@click.option(
    "--text-field",
    "text_fields",
    multiple=True,
    metavar="FIELD",
    help="An attribute to search by text; may be repeated.",
)
@json_option
@with_client
def create(
    client: Client,
    name: str,
    dimension: int,
    metric: str | None,
    storage: str | None,
    index: str | None,
    text_fields: tuple[str, ...],
    as_json: bool,
) -> int:
    """Create the collection NAME. If it exists with the same settings, nothing changes."""
    settings: dict[str, Any] = {"dimension": dimension, "metric": metric, "storage": storage, "index": index}
    settings = {key: value for key, value in settings.items() if value is not None}
    answer = client.call("PUT", _path(name), settings | ({"textFields": list(text_fields)} if text_fields else {}))
    write_json(answer) if as_json else click.echo(f"collection {name} exists")
    return tell(answer)


@click.command()
@click.argument("name")
@json_option
@with_client
def drop(client: Client, name: str, as_json: bool) -> int:
    """Delete the collection NAME and all its vectors."""
    answer = client.call("DELETE", _path(name))
    write_json(answer) if as_json else click.echo(f"collection {name} is deleted")
    return tell(answer)


def _path(name: str) -> str:
    return f"{PATH}/{urllib.parse.quote(name, safe='')}"
