"""Checks the address of the HTTP interface before the coordinator listens on it."""

from __future__ import annotations

import os
import socket

from shared.errors import ConfigError
from shared.settings import Settings


def require_free(settings: Settings) -> None:
    """Raises ConfigError if the address cannot be used now. Call this before a data directory is created: a start that
    fails because of its port must not leave one behind."""
    host, port = settings.address()
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, address in dict.fromkeys(addresses):
            socket.create_server(address, family=family).close()
    except OSError as error:
        raise cannot_be_bound(settings, error) from error


def cannot_be_bound(settings: Settings, error: OSError) -> ConfigError:
    """The error for an address that cannot be bound."""
    # `create_server` adds the address to the system's text.
    reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
    return ConfigError(f"TRIPTYCH_LISTEN is {settings.listen}, which cannot be bound: {reason}")


def host_and_port(host: str, port: int) -> str:
    """Host and port in the form of a URL: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
