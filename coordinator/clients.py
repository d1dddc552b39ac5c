"""Clients, told apart by token or else by address, and how much one of them may take.

Requests in flight, connections, followers and bytes of bodies are bounded for all clients together, and one client may
have at most a share of each (TRIPTYCH_CLIENT_SHARE), so that another client always finds room.
"""

from __future__ import annotations

import ipaddress

NETWORK_PREFIX_BITS = 64
"""One host or site usually has a whole IPv6 network of this size, and can choose any address in it."""


class Client:
    """One client and what it has at the moment. `share`: percent that it may have; None: TRIPTYCH_CLIENT_SHARE."""

    __slots__ = ("body_bytes", "connections", "followers", "name", "requests", "share")

    def __init__(self, name: str, share: int | None = None) -> None:
        self.name = name
        self.share = share
        self.connections = 0
        self.requests = 0
        self.followers = 0
        self.body_bytes = 0


class Clients:
    """The clients that have a connection."""

    def __init__(self) -> None:
        self._by_name: dict[str, Client] = {}

    def joined(self, address: str) -> Client:
        """The client of a new connection from this address."""
        return self.named(client_name(address))

    def named(self, name: str, share: int | None = None) -> Client:
        """The client of this name, which has one connection more from now on."""
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
    """An IPv4 address as it is, the network of an IPv6 address; the text itself if it is no address."""
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
    """What one client may have of `limit`: at least 1."""
    return max(1, limit * percent // 100)


def share_name(client: Client) -> str:
    """Where the client's share is set."""
    return "TRIPTYCH_CLIENT_SHARE" if client.share is None else "`share` in TRIPTYCH_TOKENS"
