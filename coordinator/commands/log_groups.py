"""`triptych log groups`, `group` and `delete-group`: the consumer groups of the log."""

from __future__ import annotations

import base64
import json
import sys
import urllib.parse

import click

from coordinator.command_client import Client
from coordinator.commands.connection import with_client
from coordinator.commands.output import json_option, write_json
from coordinator.plurals import counted

PATH = "/api/v1/log/groups"
PAGE = 1000


@click.command()
@json_option
@with_client
def groups(client: Client, as_json: bool) -> None:
    """Print the consumer groups: name, number of members, and prefix."""
    after, more = "", True
    while more:
        answer = client.call("GET", PATH, limit=PAGE, after=after)
        if as_json:
            write_json(answer)
        for group in answer["groups"]:
            after = group["group"]
            if not as_json:
                prefix = base64.b64decode(group["prefix"])
                line = b"%b\t%b\t%b\n" % (after.encode(), counted(group["members"], "members").encode(), prefix)
                sys.stdout.buffer.write(line)
        more = answer["more"]


@click.command()
@click.argument("name")
@click.option("--keys", type=int, default=100, metavar="N", help="Number of keys whose lag is shown (default: 100).")
@with_client
def group(client: Client, name: str, keys: int) -> None:
    """Print the members of a consumer group, and its lag, as JSON."""
    answer = client.call("GET", _path(name), limit=keys, encoding="text")
    sys.stdout.buffer.write(json.dumps(answer, indent=2).encode() + b"\n")


@click.command("delete-group")
@click.argument("name")
@with_client
def delete_group(client: Client, name: str) -> None:
    """Delete a consumer group and its committed positions."""
    client.call("DELETE", _path(name))


def _path(name: str) -> str:
    return f"{PATH}/{urllib.parse.quote(name, safe='')}"
