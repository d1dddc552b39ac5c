"""Lines of the standard input or a file, as they come."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from typing import cast

from coordinator.command_client import CommandError

PIECE_BYTES = 4 << 20
PIPE_BYTES = 1 << 20
"""What a pipe holds while the lines before are being sent, instead of 64 KiB; more takes privileges."""
LINE_BYTES_MAX = 16 << 20

Lines = list[tuple[int, bytes]]
"""(number, from 1 on; content without its end)."""


def standard_input() -> BufferedReader:
    return cast(BufferedReader, sys.stdin.buffer)


def read_lines(stream: BufferedReader) -> Iterator[Lines]:
    """All complete lines that are there, as soon as there are some. Raises CommandError for one that is too long."""
    with suppress(OSError):  # it is no pipe
        fcntl.fcntl(stream.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    number, rest = 0, b""
    while piece := stream.read1(PIECE_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        yield list(enumerate(lines, number + 1))
        number += len(lines)
        if len(rest) > LINE_BYTES_MAX:
            raise CommandError(f"line {number + 1} has more than {LINE_BYTES_MAX >> 20} MiB")
    if rest:
        yield [(number + 1, rest)]
