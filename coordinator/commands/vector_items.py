"""`triptych vector search`, `get`, `count` and `delete`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any, TextIO

import click

from coordinator.command_client import Client, CommandError
from coordinator.commands.connection import given, refuse_both, with_client
from coordinator.commands.output import INCOMPLETE, json_option, tell, write_json, write_table
from coordinator.plurals import counted

AREA = "/api/v1/vector"
QUERY_BYTES_MAX = 2 << 20

collection_option = click.option(
    "--collection", default="", metavar="NAME", help="The collection (default: the one named default)."
)


class Json(click.ParamType):
    """A JSON object."""

    name = "JSON"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            content = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value[:100]!r} is not JSON: {error}")
        if not isinstance(content, dict):
            self.fail(f"{value[:100]!r} is not a JSON object")
        return content


def numbers(text: str) -> list[float]:
    """The components of a vector: a JSON array, or numbers separated by white space or commas. Raises ValueError."""
    words = text.strip().removeprefix("[").removesuffix("]")
    return [float(word) for word in re.split(r"[\s,]+", words.strip()) if word]


class Vector(click.ParamType):
    """The components of a vector."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[float]:
        try:
            return numbers(value)
        except ValueError as error:
            self.fail(f"{value[:100]!r} is not a vector such as '[0.1, 0.9]': {error}")


filter_option = click.option(
    "--filter", "condition", type=Json(), help='Only vectors that match it: \'{"eq": {"field": "n", "value": 1}}\'.'
)


@click.command()
@click.option("--vector", "components", type=Vector(), help="The query vector, such as '[0.1, 0.9, 0.2]'.")
@click.option(
    "--file", type=click.File(), metavar="FILE", help="Read the query vector from this file; -: standard input."
)
@click.option("--id", "name", metavar="ID", help="The query vector is the one with this id.")
@click.option("--text", metavar="QUERY", help="Search the text fields, alone or together with a vector.")
@click.option(
    "--field", "fields", multiple=True, metavar="FIELD", help="With --text: search only this field; may be repeated."
)
@click.option("-k", type=int, default=10, metavar="N", help="Number of results (default: 10).")
@filter_option
@click.option("--include", multiple=True, metavar="FIELD", help="Return only this attribute; may be repeated.")
@click.option("--exact", is_flag=True, help="Compare the query with every vector, without an index.")
@collection_option
@json_option
@with_client
def search(client: Client, k: int, exact: bool, collection: str, as_json: bool, **query: Any) -> int:
    """Print the nearest vectors, or the best matches of a text: score, id and attributes.

    \b
    triptych vector search --vector '[0.1, 0.9, 0.2]' --filter '{"exists": {"field": "year"}}'
    triptych vector search --file embedding.json --text 'quick fox' --field body -k 3
    """
    body = {"collection": collection, "k": k, "exact": exact, **_query(**query)}
    answer = client.call("POST", f"{AREA}/search", body)
    if as_json:
        write_json(answer)
    else:
        rows = (_result(found["vector"], f"{found['score']:.6g}") for found in answer["results"])
        write_table(("score", "id", "attributes"), rows, right=("score",))
    return tell(answer)


def _query(
    components: list[float] | None,
    file: TextIO | None,
    name: str | None,
    text: str | None,
    fields: tuple[str, ...],
    condition: dict[str, Any] | None,
    include: tuple[str, ...],
) -> dict[str, Any]:
    """The members of the request for these options. Raises click.UsageError, CommandError."""
    refuse_both(vector=components, file=file, id=name)
    if not given(vector=components, file=file, id=name, text=text, filter=condition):
        raise click.UsageError("there is nothing to search for; give --vector, --file, --id, --text or --filter")
    if fields and text is None:
        raise click.UsageError("--field needs --text")
    query: dict[str, Any] = {"vector": components if file is None else _read_vector(file), "id": name}
    if text is not None:
        query["text"] = {"query": text} | ({"fields": list(fields)} if fields else {})
    query |= {"filter": condition, "includeFields": list(include) or None}
    return {member: value for member, value in query.items() if value is not None}


def _read_vector(file: TextIO) -> list[float]:
    try:
        return numbers(file.read(QUERY_BYTES_MAX))
    except ValueError as error:  # also of what is not UTF-8
        raise CommandError(f"{file.name} has no vector, a JSON array or numbers: {error}") from None


def _result(vector: Mapping[str, Any], *before: str) -> tuple[str, ...]:
    """A row: the cells `before`, the id, and all attributes except the vector itself."""
    attributes = {name: value for name, value in vector["attributes"].items() if name != "vector"}
    return *before, vector["id"], json.dumps(attributes, ensure_ascii=False) if attributes else ""


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@collection_option
@json_option
@with_client
def get(client: Client, ids: tuple[str, ...], collection: str, as_json: bool) -> int:
    """Print the vectors with these ids: id and attributes; with --json also their components.

    The exit code is 1 if none of them exists, and 3 if some do not exist.
    """
    answer = client.call("POST", f"{AREA}/get", {"ids": ids, "collection": collection})
    if as_json:
        write_json(answer)
    else:
        write_table(("id", "attributes"), map(_result, answer["vectors"]))
    missing = [name for name in ids if name not in {vector["id"] for vector in answer["vectors"]}]
    for name in missing:
        sys.stderr.write(f"triptych: there is no vector {name!r}\n")
    return tell(answer) or (0 if not missing else INCOMPLETE if answer["vectors"] else 1)


@click.command()
@filter_option
@collection_option
@json_option
@with_client
def count(client: Client, condition: dict[str, Any] | None, collection: str, as_json: bool) -> int:
    """Print the number of vectors, or of those that match --filter."""
    filtered = {} if condition is None else {"filter": condition}
    answer = client.call("POST", f"{AREA}/count", {"collection": collection, **filtered})
    write_json(answer) if as_json else click.echo(str(answer["count"]))
    return tell(answer)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@filter_option
@collection_option
@json_option
@with_client
def delete(
    client: Client, ids: tuple[str, ...], condition: dict[str, Any] | None, collection: str, as_json: bool
) -> int:
    """Delete the vectors with these ids, or all that match --filter."""
    if bool(ids) == (condition is not None):
        raise click.UsageError("give ids or --filter, and not both")
    chosen = {"ids": ids} if ids else {"filter": condition}
    answer = client.call("POST", f"{AREA}/delete", {"collection": collection, **chosen})
    write_json(answer) if as_json else click.echo(counted(answer["vectorsDeleted"], "vectors deleted"))
    return tell(answer)
