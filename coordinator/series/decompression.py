"""Decompresses remote-write bodies (snappy, block format) within a size limit.

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
"""The densest snappy element writes 64 bytes for 3. A header that announces more is wrong, and is refused before any
memory is allocated."""
INTO_BYTES_MIN = 64 << 10
"""Bodies of at least this size are decompressed into a preallocated buffer: without a copy, and without holding the
interpreter lock."""
SNAPPY_LENGTH_BYTES_MAX = 5
"""Bytes of the varint at the start of a snappy body."""


def decompressed_size(raw: bytes) -> int:
    """The decompressed size that a snappy body announces. Raises BadData if it does not begin with a length."""
    try:
        size, _ = read_varint(raw[:SNAPPY_LENGTH_BYTES_MAX], 0)
    except IndexError:
        raise BadData(f"the body is not snappy: its {len(raw)} bytes do not begin with a length") from None
    return size


def decompress(raw: bytes, bytes_max: int) -> Frame:
    """The decompressed body. Raises TooLarge if it would have more than `bytes_max` bytes, BadData if `raw` is not
    snappy."""
    size = decompressed_size(raw)
    if size > bytes_max:
        raise TooLarge(f"the body decompresses to {size} bytes; the limit is {bytes_max}")
    if size > SNAPPY_RATIO_MAX * len(raw):
        raise BadData(f"the body is not snappy: {len(raw)} bytes cannot hold the {size} they announce")
    if size >= INTO_BYTES_MIN:
        return _decompress_into_buffer(raw, size)
    try:
        body = snappy.uncompress(raw)
    except snappy.UncompressError as error:
        raise BadData(f"the body is not snappy in block format: {error.__cause__}") from error
    if len(body) != size:
        raise BadData(f"the body is not snappy: it announces {size} bytes and holds {len(body)}")
    return body


def _decompress_into_buffer(raw: bytes, size: int) -> Frame:
    body = np.empty(size, np.uint8).data
    try:
        written = cramjam.snappy.decompress_raw_into(raw, body)
    except cramjam.DecompressionError as error:
        raise BadData(f"the body is not snappy in block format: {error}") from error
    if written != size:
        raise BadData(f"the body is not snappy: it announces {size} bytes and holds {written}")
    return body
