"""`triptych token NAME` creates a token. It is shown once; the token file has only its hash."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from coordinator.access import tokens
from coordinator.access.roles import Area
from coordinator.command_client import CommandError
from coordinator.commands.connection import FILE
from shared.errors import ConfigError

ROLES = ("read", "write", "admin")
AREAS = tuple(area.name.lower() for area in Area)


def _role_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for area in reversed(AREAS):
        text = f"Role in the area {area} (default: none)."
        function = click.option(f"--{area}", type=click.Choice(ROLES), help=text)(function)
    return function


@click.command()
@click.argument("name")
@_role_options
@click.option(
    "--append", "path", type=FILE, metavar="FILE", help="Append the lines to this file, and print only the token."
)
def token(name: str, path: Path | None, **roles: str | None) -> None:
    """Create a bearer token with the name NAME, such as grafana.

    It is shown once: the file that TRIPTYCH_TOKENS names has only its hash.

    \b
    triptych token grafana --metrics read --log read --append tokens.toml > grafana.token
    """
    try:
        if not any(roles.values()):
            raise ConfigError(f"{name!r} has no role; give it one, such as --metrics read")
        secret, lines = tokens.mint(name)
        lines += "".join(f'{area} = "{role}"\n' for area, role in roles.items() if role)
        if path is not None:
            _append(path, name, lines)
    except ConfigError as error:
        raise CommandError(str(error)) from None
    click.echo(secret if path is not None else f"{secret}\n\n{lines}", nl=path is not None)


def _append(path: Path, name: str, lines: str) -> None:
    """Raises ConfigError if the file cannot be written, or has a token with this name. The file is replaced as a whole,
    so that no reader sees part of a line."""
    try:
        before = path.read_bytes() if path.exists() else b""
        if name in tokens.parse(before, path):
            raise ConfigError(f"{path} has a token {name!r}; remove its lines first, or choose another name")
        new = path.with_name(path.name + ".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(before.rstrip() + b"\n\n" * bool(before.strip()) + lines.encode())
            file.flush()
            os.fsync(file.fileno())
        if before:
            os.chmod(new, path.stat().st_mode & 0o777)
        os.replace(new, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
