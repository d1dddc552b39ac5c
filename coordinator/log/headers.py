"""Headers of a record as requests give them and as answers show them."""

from __future__ import annotations

from collections.abc import Mapping

from proto import log_pb2
from shared.errors import BadData
from shared.log.headers import TOMBSTONE

PAIRS_MAX = 64
BYTES_MAX = 16 << 10
"""Bytes of the names and values of one record's headers and of its content type, in UTF-8."""


def packed(headers: Mapping[str, str], content_type: str, where: str, tombstone: bool = False) -> bytes:
    """The headers of the record `where` as they are stored (shared.log.headers); b"" if it has neither and is no
    tombstone. Raises BadData that names the field."""
    mark = TOMBSTONE if tombstone else b""
    if not headers and not content_type:
        return mark
    if len(headers) > PAIRS_MAX:
        raise BadData(f"`{where}.headers` has {len(headers)} entries; it may have at most {PAIRS_MAX}")
    if "" in headers:
        raise BadData(f"`{where}.headers` has an empty name; each header needs a name")
    try:
        size = len(content_type.encode()) + sum(len(text.encode()) for pair in headers.items() for text in pair)
    except UnicodeEncodeError as error:
        raise BadData(f"`{where}.headers` is not valid Unicode text: {error}") from error
    if size > BYTES_MAX:
        raise BadData(f"`{where}` has {size} bytes of headers and content type; it may have at most {BYTES_MAX}")
    message = log_pb2.RecordHeaders(headers=headers, content_type=content_type)
    return mark + message.SerializeToString(deterministic=True)


def unpacked(headers: bytes) -> tuple[dict[str, str], str, bool]:
    """(the headers, ordered by name, the content type, whether the record is a tombstone)."""
    message = log_pb2.RecordHeaders.FromString(headers)
    return dict(sorted(message.headers.items())), message.content_type, message.tombstone
