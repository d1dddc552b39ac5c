"""The symbol table of a remote-write 2.0 body and references to it, for kernels."""

# In a kernel's types a numpy integer and an int are one.
# mypy: disable-error-code="assignment, return-value"

from __future__ import annotations

import numpy as np

from shared.kernels import inlined
from shared.xxh64 import load64

# Columns of the symbol table: where the text begins and ends in the body, and the bytes of the text with its length as
# a label name and as a label value; 0 if it cannot be a name or a value in a plain series.
BEGIN, SYMBOL_END, AS_NAME, AS_VALUE = range(4)
SYMBOL_COLUMNS = 4

_NAME = np.frombuffer(b"__name__", dtype=np.uint64)[0]


@inlined(allocates=False)
def reference(body: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """Read the packed reference at `at` < `end`: (the reference, where the next one begins), or (-1, …) if it has more
    than three bytes."""
    number = np.int64(body[at])
    if number < 0x80:
        return number, at + 1
    if at + 1 < end and body[at + 1] < 0x80:
        return number & 0x7F | np.int64(body[at + 1]) << 7, at + 2
    if at + 2 < end and body[at + 2] < 0x80:
        return number & 0x7F | (np.int64(body[at + 1]) & 0x7F) << 7 | np.int64(body[at + 2]) << 14, at + 3
    return np.int64(-1), at


@inlined(allocates=False)
def is_metric_name(body: np.ndarray, symbols: np.ndarray, symbol: int) -> bool:
    """Whether the text of a symbol is __name__."""
    begin = symbols[symbol, BEGIN]
    return symbols[symbol, SYMBOL_END] - begin == 8 and load64(body, begin) == _NAME
