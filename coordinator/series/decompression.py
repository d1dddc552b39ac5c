"""Bodies of remote write decompressed: snappy in block format, with a bound.

Format: https://github.com/google/snappy/blob/main/format_description.txt.
"""

from __future__ import annotations

import cramjam
import numpy as np
import snappy

from shared.errors import BadData, TooLarge
from shared.protobuf_fields import read_varint
from shared.wire import Frame

SNAPPY_RATIO_MAX = 22
"""Snappy's densest element writes 64 bytes for 3: a header that announces more lies, and is found out before the
memory is taken."""
INTO_BYTES_MIN = 64 << 10
"""From here on a body is decompressed into its place, without a copy and without the interpreter lock."""
SNAPPY_LENGTH_BYTES_MAX = 5
"""Of the varint that a snappy body begins with."""


def decompressed_size(raw: bytes) -> int:
    """How many bytes a raw snappy body announces. Raises BadData if it does not begin with a length."""
    try:
        size, _ = read_varint(raw[:SNAPPY_LENGTH_BYTES_MAX], 0)
    except IndexError:
        raise BadData(f"the body is not snappy: its {len(raw)} bytes do not begin with a length") from None
    return size


def decompress(raw: bytes, bytes_max: int) -> Frame:
    """Raw snappy → bytes. Raises TooLarge if they would be more than `bytes_max`, BadData if `raw` is not snappy."""
    size = decompressed_size(raw)
    if size > bytes_max:
        raise TooLarge(f"the body decompresses to {size} bytes; the limit is {bytes_max}")
    if size > SNAPPY_RATIO_MAX * len(raw):
        raise BadData(f"the body is not snappy: {len(raw)} bytes cannot hold the {size} they announce")
    if size >= INTO_BYTES_MIN:
        return _decompressed_into_place(raw, size)
    try:
        body = snappy.uncompress(raw)
    except snappy.UncompressError as error:
        raise BadData(f"the body is not snappy in block format: {error.__cause__}") from error
    if len(body) != size:
        raise BadData(f"the body is not snappy: it announces {size} bytes and holds {len(body)}")
    return body


def _decompressed_into_place(raw: bytes, size: int) -> Frame:
    body = np.empty(size, np.uint8).data
    try:
        written = cramjam.snappy.decompress_raw_into(raw, body)
    except cramjam.DecompressionError as error:
        raise BadData(f"the body is not snappy in block format: {error}") from error
    if written != size:
        raise BadData(f"the body is not snappy: it announces {size} bytes and holds {written}")
    return body
