"""The options by which a command reaches a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from coordinator.command_client import URL_DEFAULT, Client, Reach

Function = Callable[..., Any]
FILE = click.Path(path_type=Path)


def connection_options(url_default: str | None = URL_DEFAULT) -> Callable[[Function], Function]:
    """Options that give the function `url`, `token_file`, `ca`, `tls_cert` and `tls_key`: the fields of `Reach`.

    `url_default` None: the command can do without a cluster.
    """
    otherwise = f", or {url_default}" if url_default else ""
    options = (
        click.option(
            "--url", envvar="TRIPTYCH_URL", default=url_default, help=f"Of the cluster (TRIPTYCH_URL{otherwise})."
        ),
        click.option(
            "--token-file",
            type=FILE,
            metavar="FILE",
            help="File with a token, or with user:password (else TRIPTYCH_TOKEN has it).",
        ),
        click.option("--ca", type=FILE, metavar="FILE", help="Certificates that verify the server's, as PEM."),
        click.option("--tls-cert", type=FILE, metavar="FILE", help="Certificate of this client, as PEM."),
        click.option("--tls-key", type=FILE, metavar="FILE", help="Key of --tls-cert, if it is another file."),
    )

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def with_client(function: Function) -> Function:
    """Adds the options, and gives the function the client as its first argument instead of them. To be the innermost
    decorator, so that help shows these options last."""

    @wraps(function)
    def run(
        url: str,
        token_file: Path | None,
        ca: Path | None,
        tls_cert: Path | None,
        tls_key: Path | None,
        **arguments: Any,
    ) -> Any:
        return function(Client.of(Reach(url, token_file, ca, tls_cert, tls_key)), **arguments)

    return connection_options()(run)


def given(**options: object) -> list[str]:
    """The names, as on the command line, of those that are not None, False or empty tuples."""
    return [
        _dashed(name) for name, value in options.items() if value is not None and value is not False and value != ()
    ]


def require_one(**options: object) -> None:
    """Raises click.UsageError unless exactly one of these is given."""
    names = given(**options)
    if len(names) != 1:
        every = " or ".join(map(_dashed, options))
        raise click.UsageError(
            f"{' and '.join(names)} exclude each other; give one" if names else f"{every} is missing; give one"
        )


def refuse_both(**options: object) -> None:
    """Raises click.UsageError if more than one of these is given."""
    names = given(**options)
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} exclude each other")


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")
