"""When certificates expire. Python's ssl gives that date only for a peer's certificate, so this reads the DER."""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END")
_VERSION, _UTC_TIME = 0xA0, 0x17


def expires_at(pem: bytes) -> float | None:
    """When the first of these certificates expires, in Unix time: a chain is valid as long as all of it is. None if no
    date can be read."""
    try:
        return min((_not_after(binascii.a2b_base64(encoded)) for encoded in _PEM.findall(pem)), default=None)
    except (IndexError, ValueError):
        return None


def _not_after(der: bytes) -> float:
    """notAfter of a certificate (RFC 5280, 4.1), in Unix time. Raises IndexError or ValueError if `der` is no
    certificate."""
    _, at, _ = _element(der, 0)  # Certificate
    _, at, _ = _element(der, at)  # TBSCertificate
    tag, _, after = _element(der, at)
    at = after if tag == _VERSION else at
    for _ in ("serialNumber", "signature", "issuer"):
        _, _, at = _element(der, at)
    _, at, _ = _element(der, at)  # Validity
    _, _, at = _element(der, at)  # notBefore
    tag, start, after = _element(der, at)
    text = der[start:after].decode("ascii")
    if tag == _UTC_TIME:
        text = ("20" if text < "50" else "19") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """(tag, start of the content, end of the content) of the element at offset `at`."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(der[at + 2 : start], "big")
    return tag, start, start + length
