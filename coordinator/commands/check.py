"""`triptych check`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.commands.connection import FILE


@click.command()
@click.argument("data", type=FILE, envvar="TRIPTYCH_DATA", default=Path("data"))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(data: Path, as_json: bool) -> int:
    """Report damage in a data directory that is not in use.

    DATA is the data directory (default: TRIPTYCH_DATA, or ./data). Exit codes: 0 no damage, 1 damage, 2 the check was
    not possible.
    """
    from coordinator.check import run

    return run(data, as_json=as_json)
