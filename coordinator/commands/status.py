"""`triptych status`: the shards and workers of a running cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any

import click

from coordinator.command_client import Client
from coordinator.commands.connection import with_client
from coordinator.commands.output import INCOMPLETE, json_option, write_json, write_table
from coordinator.commands.progress import bytes_text

HELD = ("series", "samples", "records", "vectors")
"""The counts of a shard to show."""


@click.command()
@json_option
@with_client
def status(client: Client, as_json: bool) -> int:
    """Show the workers of a running cluster, and the states of their shards.

    The exit code is 3 if not all shards are ready.
    """
    answer = client.call("GET", "/api/v1/cluster")
    if as_json:
        write_json(answer)
    else:
        _write(answer["data"])
    return 0 if answer["data"]["ready"] else INCOMPLETE


def _write(data: dict[str, Any]) -> None:
    shards = data["shards"]
    rows = [
        _row(worker["worker"], str(worker["pid"]), [one for one in shards if one["worker"] == worker["worker"]])
        for worker in data["workers"]
    ]
    worker_names = {worker["worker"] for worker in data["workers"]}
    orphans = [one for one in shards if one["worker"] not in worker_names]
    if orphans:
        rows.append(_row("none", "", orphans))
    write_table(("worker", "pid", "shards", *HELD, "memory"), rows, right=("pid", *HELD, "memory"))
    click.echo(f"{data['shardsReady']} of {len(shards)} shards are ready")


def _row(name: str, pid: str, shards: list[dict[str, Any]]) -> tuple[str, ...]:
    states = Counter(one["state"] for one in shards)
    counts: Counter[str] = Counter()
    for one in shards:
        counts.update(one["counts"])
    in_states = ", ".join(f"{count} {state}" for state, count in states.items())
    memory = bytes_text(sum(one["memoryBytes"] for one in shards))
    return name, pid, in_states, *(str(counts[what]) for what in HELD), memory
