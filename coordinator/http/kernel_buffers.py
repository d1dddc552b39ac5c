"""Limits on the bytes that the kernel buffers for clients that do not read their responses."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

UNSENT_BYTES = 64 << 10
"""The kernel buffers this much beyond the client's TCP window. By default it would buffer up to 4 MB."""
TCP_NOTSENT_LOWAT = getattr(socket, "TCP_NOTSENT_LOWAT", None)
TCP_USER_TIMEOUT = getattr(socket, "TCP_USER_TIMEOUT", None)


def bound(connection: socket.socket | None, reader_timeout_s: float) -> None:
    """Have the kernel buffer little that the client does not read, and close the connection if its client reads
    nothing, even when nothing more is written to the connection."""
    if connection is None or connection.family not in (socket.AF_INET, socket.AF_INET6):
        return
    with suppress(OSError):  # the client may have disconnected
        if TCP_NOTSENT_LOWAT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        if TCP_USER_TIMEOUT is not None:
            connection.setsockopt(socket.IPPROTO_TCP, TCP_USER_TIMEOUT, round(2000 * reader_timeout_s))


def drop_unsent(connection: socket.socket | None) -> None:
    """Have the kernel drop its buffer when the connection is closed. Otherwise it would keep trying for minutes to send
    the buffer to a client that reads nothing."""
    if connection is not None:
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
