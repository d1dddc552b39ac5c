"""The address of the HTTP interface, before anybody listens there."""

from __future__ import annotations

import socket

from shared.config import Settings
from shared.errors import ConfigError


def require_free(settings: Settings) -> None:
    """Raises ConfigError when nobody could listen there now. Asked before a data directory is created: a start that
    fails for its port must not leave one behind."""
    host, port = settings.address()
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, place in dict.fromkeys(places):
            socket.create_server(place, family=family).close()
    except OSError as error:
        raise cannot_be_bound(settings, error) from error


def cannot_be_bound(settings: Settings, error: OSError) -> ConfigError:
    """What an operator is told whose address cannot be had."""
    reason = error.strerror or str(error)
    return ConfigError(f"TRIPTYCH_LISTEN is {settings.listen}, which cannot be bound: {reason}")


def host_and_port(host: str, port: int) -> str:
    """As a URL has them: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
