"""The output of commands: tables on a terminal, tab-separated lines elsewhere, and the server's response with
--json."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from coordinator import rfc_3339

INCOMPLETE = 3
"""Exit code: the output or the work is incomplete, and standard error names what is missing."""

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print the server's response as one line of JSON."
)


def write_json(answer: Any) -> None:
    sys.stdout.buffer.write(json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")


def tell(answer: Mapping[str, Any]) -> int:
    """Writes warnings and hints to standard error. Returns the exit code: INCOMPLETE if there are warnings."""
    for kind in ("warning", "info"):
        for text in answer.get(f"{kind}s") or ():
            sys.stderr.write(f"{kind}: {printable(text)}\n")
    return INCOMPLETE if answer.get("warnings") else 0


def write_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Writes a table with headings on a terminal; elsewhere a tab-separated line for each row, without headings.

    `right`: right-aligned columns. Cells have text from servers, which is escaped: it cannot end a line, move the
    cursor or change colours.
    """
    safe = ([printable(cell) for cell in row] for row in rows)
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(row) + "\n" for row in safe)
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in safe:
        table.add_row(*map(Text, row))
    Console().print(table)


def printable(text: str) -> str:
    """The text as one line, with its control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def time_text(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds unless they are zero."""
    return rfc_3339.time_text(seconds).replace(".000Z", "Z")
