"""Where rows of CSV end, as Python's `csv.reader` reads them, with which the server reads the rows."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shared.kernels import kernel, types
from shared.xxh64 import Bytes

_QUOTE, _COMMA, _LINE_FEED, _RETURN = (np.uint8(ord(c)) for c in '",\n\r')


def rows_end(text: bytes) -> int:
    """Behind the last line break that ends a row, 0 without one. The text begins with a row. A carriage return at its
    end is no such break yet: a line feed may follow."""
    if b'"' not in text and b"\n" in text:
        return text.rindex(b"\n") + 1
    return _rows_end(np.frombuffer(text, dtype=np.uint8), False)


def first_row_end(text: bytes) -> int:
    """As `rows_end`, of the first row."""
    return _rows_end(np.frombuffer(text, dtype=np.uint8), True)


@kernel(types.int64(Bytes, types.boolean), allocates=False)
def _rows_end(text: NDArray[np.uint8], is_first: bool) -> int:
    """A quote opens a quoted field only where a field begins; elsewhere in a plain field it is text. One directly
    behind the quote that has closed a field opens it again, since two of them are a quote within the field."""
    end = 0
    is_quoted, may_open = False, True
    for at in range(len(text)):
        byte = text[at]
        if byte == _QUOTE:
            may_open, is_quoted = is_quoted, not is_quoted and may_open
        elif not is_quoted:
            may_open = byte in (_COMMA, _LINE_FEED, _RETURN)
            if byte == _LINE_FEED or (byte == _RETURN and at + 1 < len(text) and text[at + 1] != _LINE_FEED):
                end = at + 1
                if is_first:
                    break
    return end
