"""`triptych log`: the append-only log from a shell."""

from __future__ import annotations

import click

from coordinator.commands.log_append import append
from coordinator.commands.log_groups import delete_group, group, groups
from coordinator.commands.log_reading import keys, scan, tail


@click.group(no_args_is_help=True)
def log() -> None:
    """The append-only log: an ordered log for each key.

    \b
    triptych log append --key app < app.log          a record for each line
    triptych log scan --key app --since 2026-01-01T00:00:00Z --times
    triptych log tail --prefix '' --where '$.level = "error"'
    """


for command in (append, tail, scan, keys, groups, group, delete_group):
    log.add_command(command)
