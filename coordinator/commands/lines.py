"""Lines of standard input or a file, as they arrive."""

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
"""The capacity of a pipe, which fills while earlier lines are being sent. The default is 64 KiB; more than this takes
privileges."""
LINE_BYTES_MAX = 16 << 20

Lines = list[tuple[int, bytes]]
"""(line number, from 1; content without the line end)."""


def standard_input() -> BufferedReader:
    return cast(BufferedReader, sys.stdin.buffer)


def read_lines(stream: BufferedReader) -> Iterator[Lines]:
    """Yields all complete lines that have arrived, as soon as there are any. Raises CommandError for a line that is too
    long."""
    with suppress(OSError):  # not a pipe
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
