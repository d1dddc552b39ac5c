"""The layout of a chunk, shared by its writer and its reader: see `chunks`."""

from __future__ import annotations

import struct

import numpy as np

VERSION = 3
HEADER = struct.Struct("<BBHIIIIII")
"""Version, two zeros; the number of pages; the compressed bytes of the numbers of runs: kinds, slopes of times, bases
and slopes of values, constants. The table of pages, these numbers and the arrays of the pages follow."""

STREAMS = (np.int16, np.int64, np.int16, np.int64, np.float64)
"""The types of the compressed arrays of a page, in their order: narrow and wide residuals of times and of values, and
values that are stored as doubles."""
TIMES_STREAMS = 2
PAGE_NUMBERS = 1 + len(STREAMS)
"""Numbers of a page in the table: where its runs end, and the bytes of its arrays; each is four bytes."""

SAME = 3
"""The kind of times that equal those of the run before. The other kinds are those of `integer_runs`."""
CONSTANT, FLOATS = 3, 4
"""Kinds of values that are not whole numbers: one value for the whole run, or doubles."""
TIMES_KIND, TIMES_WALK, VALUES_SHIFT, VALUES_KIND, VALUES_WALK = 3, 4, 3, 7, 8
"""The kinds of a run in one number: the bits of the kind of its times, and the bit that is set if they are a walk;
above them, shifted, the same for its values."""
KINDS_MAX = 1 << 7
