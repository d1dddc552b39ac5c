"""`triptych check`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.commands.connection import FILE


@click.command()
@click.argument("data", type=FILE, envvar="TRIPTYCH_DATA", default=Path("data"))
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def check(data: Path, as_json: bool) -> int:
    """Say what is damaged in a data directory that is not in use.

    DATA is the directory; without it, TRIPTYCH_DATA, or ./data. Exit code 0: nothing is damaged, 1: something, 2: it
    could not be checked.
    """
    from coordinator.check import run

    return run(data, as_json=as_json)
