"""The options for the connection of a command to a cluster."""

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

    `url_default` None: the command does not need a cluster.
    """
    otherwise = f", or {url_default}" if url_default else ""
    options = (
        click.option(
            "--url", envvar="TRIPTYCH_URL", default=url_default, help=f"URL of the cluster (TRIPTYCH_URL{otherwise})."
        ),
        click.option(
            "--token-file",
            type=FILE,
            metavar="FILE",
            help="File with a token or user:password (default: those in TRIPTYCH_TOKEN).",
        ),
        click.option(
            "--ca",
            type=FILE,
            metavar="FILE",
            help="PEM file with the authorities that the server's certificate is verified with.",
        ),
        click.option("--tls-cert", type=FILE, metavar="FILE", help="PEM file with the certificate of this client."),
        click.option(
            "--tls-key",
            type=FILE,
            metavar="FILE",
            help="PEM file with the key of --tls-cert, if it is not in the same file.",
        ),
    )

    def add(function: Function) -> Function:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def with_client(function: Function) -> Function:
    """Adds the options, and passes the client to the function in their place, as its first argument. Use this as the
    innermost decorator, so that help shows these options last."""

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
    """The names, as on the command line, of the options that are not None, False or empty tuples."""
    return [
        _dashed(name) for name, value in options.items() if value is not None and value is not False and value != ()
    ]


def require_one(**options: object) -> None:
    """Raises click.UsageError unless exactly one of these options is given."""
    names = given(**options)
    if len(names) != 1:
        every = " or ".join(map(_dashed, options))
        raise click.UsageError(
            f"{' and '.join(names)} exclude each other; give one" if names else f"{every} is missing; give one"
        )


def refuse_both(**options: object) -> None:
    """Raises click.UsageError if more than one of these options is given."""
    names = given(**options)
    if len(names) > 1:
        raise click.UsageError(f"{' and '.join(names)} exclude each other")


def _dashed(name: str) -> str:
    return "--" + name.replace("_", "-")
