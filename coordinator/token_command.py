"""`triptych token NAME` makes a token. It is shown once; the file of tokens gets only its hash."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from coordinator.access import tokens
from coordinator.access.roles import Area
from shared.errors import ConfigError

ROLES = ("read", "write", "admin")
AREAS = tuple(area.name.lower() for area in Area)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="of the token, such as grafana")
    for area in AREAS:
        parser.add_argument(f"--{area}", choices=ROLES, help=f"role in the area {area} (default: none)")
    parser.add_argument(
        "--append", type=Path, metavar="FILE", help="add the lines to this file, and print only the token"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; 1 for an error, which is one line on the error stream."""
    roles = {area: getattr(arguments, area) for area in AREAS if getattr(arguments, area)}
    try:
        if not roles:
            raise ConfigError(f"{arguments.name!r} has no role; give it one, such as --metrics read")
        token, lines = tokens.mint(arguments.name)
        lines += "".join(f'{area} = "{role}"\n' for area, role in roles.items())
        if arguments.append is not None:
            _append(arguments.append, arguments.name, lines)
    except ConfigError as error:
        sys.stderr.write(f"triptych: {error}\n")
        return 1
    sys.stdout.write(f"{token}\n" if arguments.append is not None else f"{token}\n\n{lines}")
    return 0


def _append(path: Path, name: str, lines: str) -> None:
    """Raises ConfigError when the file cannot be written, or has this token. It is replaced as a whole, so that no
    reader sees a part of a line."""
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
