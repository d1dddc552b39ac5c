"""Clients, identified by token or by address, and the share of resources that one client may use.

Requests in flight, connections, followers and bytes of bodies are limited for all clients together. One client may use
at most a share of each limit (TRIPTYCH_CLIENT_SHARE), so that there is always room for other clients.
"""

from __future__ import annotations

import ipaddress
from contextvars import ContextVar

NETWORK_PREFIX_BITS = 64
"""A host or site usually has a whole IPv6 network of this size, and can use any address in it."""


class Client:
    """One client and what it uses at the moment. `share`: its share in percent; None for TRIPTYCH_CLIENT_SHARE."""

    __slots__ = ("body_bytes", "connections", "followers", "name", "requests", "share")

    def __init__(self, name: str, share: int | None = None) -> None:
        self.name = name
        self.share = share
        self.connections = 0
        self.requests = 0
        self.followers = 0
        self.body_bytes = 0


CURRENT_CLIENT = ContextVar("client", default="")
"""The name of the client whose request is being served; empty outside of requests."""


class Clients:
    """The clients that have a connection."""

    def __init__(self) -> None:
        self._by_name: dict[str, Client] = {}

    def joined(self, address: str) -> Client:
        """The client of a new connection from this address."""
        return self.named(client_name(address))

    def named(self, name: str, share: int | None = None) -> Client:
        """The client with this name, to which one more connection is added."""
        client = self._by_name.get(name)
        if client is None:
            client = self._by_name[name] = Client(name)
        client.share = share
        client.connections += 1
        return client

    def left(self, client: Client) -> None:
        """One of the client's connections has ended."""
        client.connections -= 1
        if not client.connections and self._by_name.get(client.name) is client:
            del self._by_name[client.name]


def client_name(address: str) -> str:
    """An IPv4 address unchanged, or the network of an IPv6 address. Any other text is returned unchanged."""
    if ":" not in address:
        return address
    try:
        parsed = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((parsed, NETWORK_PREFIX_BITS), strict=False))


def share_of(limit: int, percent: int) -> int:
    """The part of `limit` that one client may use: at least 1."""
    return max(1, limit * percent // 100)


def share_name(client: Client) -> str:
    """The name of the setting that determines the client's share."""
    return "TRIPTYCH_CLIENT_SHARE" if client.share is None else "`share` in TRIPTYCH_TOKENS"
