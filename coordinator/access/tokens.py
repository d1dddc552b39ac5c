"""Our file of bearer tokens: TOML, one table for each token (docs/security.md).

    [grafana]
    hash = "$2b$10$…"
    metrics = "read"
    share = 50

A token is `triptych.NAME.SECRET`. The name says which hash to compare with, so an unknown token costs one comparison
however many tokens there are. The file has the bcrypt hash of the secret, which has 192 random bits.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Annotated, Literal

import bcrypt
import msgspec

from coordinator.access.passwords import check_hash
from coordinator.access.roles import Role, Roles
from shared.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
PREFIX = "triptych"
SECRET_BYTES = 24
HASH_COST = 10
"""bcrypt at this cost takes some 50 ms. A random secret needs no slow hash, but some secrets in the file may have been
chosen by people, and more people may read the file than may use the tokens."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

RoleName = Literal["none", "read", "write", "admin"]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    hash: str
    metrics: RoleName = "none"
    log: RoleName = "none"
    vectors: RoleName = "none"
    share: Annotated[int, msgspec.Meta(ge=1, le=100)] | None = None
    """Percent of requests, connections, followers and bytes of bodies; None: TRIPTYCH_CLIENT_SHARE."""
    requests_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e9)] | None = None

    @property
    def roles(self) -> Roles:
        return Role[self.metrics.upper()], Role[self.log.upper()], Role[self.vectors.upper()]


def parse(content: bytes, path: Path) -> dict[str, Token]:
    """The file's content: name → token. Raises ConfigError."""
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has {len(content)} bytes; it must have at most {FILE_BYTES_MAX}")
    try:
        tokens = msgspec.toml.decode(content, type=dict[str, Token])
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path} is not valid: {error}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    for name, token in tokens.items():
        check_name(name, str(path))
        check_hash(token.hash, f"{path}: the hash of {name!r}")
        if not any(token.roles):
            raise ConfigError(f'{path}: the token {name!r} has no role; give it one, such as metrics = "read"')
    return tokens


def check_name(name: str, where: str) -> None:
    """Raise ConfigError if this cannot be the name of a token."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: {name!r} is not a name of a token; use up to 64 of A-Z, a-z, 0-9, _ and -")


def split(token: str) -> tuple[str, str] | None:
    """(name, secret) of a token; None if it does not have the form of one."""
    prefix, _, name_and_secret = token.partition(".")
    name, dot, secret = name_and_secret.partition(".")
    return (name, secret) if prefix == PREFIX and dot and name and secret else None


def mint(name: str) -> tuple[str, str]:
    """(a new token, its table in the file). Raises ConfigError for an invalid name."""
    check_name(name, "NAME")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    hashed = bcrypt.hashpw(secret.encode(), bcrypt.gensalt(HASH_COST)).decode()
    return f"{PREFIX}.{name}.{secret}", f'[{name}]\nhash = "{hashed}"\n'
