"""Positions in a query text, and the errors that name them."""

from __future__ import annotations

from shared.errors import NotExecutable, ParseError


def line_column(text: str, offset: int) -> tuple[int, int]:
    """(line, column) of a character offset, both from 1. An offset past the end means the position after the last
    character."""
    offset = min(offset, len(text))
    line_start = text.rfind("\n", 0, offset) + 1
    return text.count("\n", 0, offset) + 1, offset - line_start + 1


class Fault(Exception):
    """An error in a query and its offset, raised where the text is not available. `located` turns it into an error for
    the client.

    `executable` False: the text is not PromQL. True: it is PromQL, but a type, a function or the size is wrong.
    `offset` None: Prometheus detects this error at evaluation, and reports it without a position.
    """

    def __init__(self, message: str, offset: int | None, *, executable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset
        self.executable = executable

    def located(self, text: str) -> ParseError | NotExecutable:
        """The error for the client; `text` is the whole query."""
        if self.offset is None:
            return NotExecutable(self.message)
        line, column = line_column(text, self.offset)
        kind = NotExecutable if self.executable else ParseError
        return kind(f"{line}:{column}: parse error: {self.message}")
