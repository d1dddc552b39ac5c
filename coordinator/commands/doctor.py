"""`triptych doctor`."""

from __future__ import annotations

from pathlib import Path

import click

from coordinator.command_client import Client, Reach
from coordinator.commands.connection import FILE, connection_options


@click.command()
@click.argument("data", type=FILE, required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@connection_options(url_default=None)
def doctor(
    data: Path | None,
    as_json: bool,
    url: str | None,
    token_file: Path | None,
    ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
) -> int:
    """Report what is wrong with the machine, the settings, the data directory and, with --url, a running cluster.

    DATA is the data directory (default: TRIPTYCH_DATA, or ./data). Exit codes: 0 no problem, 1 a problem, 2 wrong
    arguments.
    """
    from coordinator.doctor.report import run

    reach = Reach(url or "", token_file, ca, tls_cert, tls_key)
    return run(data, url, lambda: Client.of(reach), as_json=as_json)
