"""Bounds on what the kernel holds of answers that clients do not take."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

UNSENT_BYTES = 64 << 10
"""The kernel takes so much beyond what the client's window admits; by itself it would take up to 4 MB."""
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


def bound(connection: socket.socket | None, reader_timeout_s: float) -> None:
    """Have the kernel keep little of what the client does not take, and end a connection whose client takes nothing of
    it, also when nobody writes to the connection any more."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # the client may have gone
        if TCP_NOTSENT_LOWAT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if TCP_USER_TIMEOUT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, round(2000 * reader_timeout_s))


def drop_unsent(connection: socket.socket | None) -> None:
    """Have the kernel drop what it holds when the connection is closed. Otherwise it would offer it to a client that
    takes nothing for minutes more."""
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
