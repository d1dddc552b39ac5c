"""`triptych log groups`, `group` and `delete-group`: the consumer groups of the log."""

from __future__ import annotations

import argparse
import base64
import json
import urllib.parse
from collections.abc import Callable
from typing import BinaryIO

from coordinator.command_client import Client

PATH = "/api/v1/log/groups"
PAGE = 1000


def groups(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    """A line for each group: its name, how many members it has, and its prefix."""
    after, more = "", True
    while more:
        answer = client.call("GET", PATH, limit=PAGE, after=after)
        for group in answer["groups"]:
            prefix = base64.b64decode(group["prefix"])
            output.write(b"%b\t%d members\t%b\n" % (group["group"].encode(), group["members"], prefix))
            after = group["group"]
        more = answer["more"]


def group(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    """The members of a group and its lag, as JSON."""
    answer = client.call("GET", _path(arguments), limit=arguments.keys, encoding="text")
    output.write(json.dumps(answer, indent=2).encode() + b"\n")


def delete(client: Client, arguments: argparse.Namespace, lines: BinaryIO, output: BinaryIO) -> None:
    client.call("DELETE", _path(arguments))


def _path(arguments: argparse.Namespace) -> str:
    return f"{PATH}/{urllib.parse.quote(arguments.name, safe='')}"


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands. `command` makes a parser, by name, function and text."""
    command("groups", groups, "print the consumer groups")
    showing = command("group", group, "print the members of a consumer group, and how much it has left to do")
    showing.add_argument("name")
    showing.add_argument("--keys", type=int, default=100, help="how many keys to show the lag of (default 100)")
    command("delete-group", delete, "delete a consumer group, with what it has committed").add_argument("name")
