"""aiohttp is imported without the certificates of authorities, all of which it would read twice at once, in 50 ms: for
requests that name no context, of which there are none here (`coordinator.http_client_config`)."""

from __future__ import annotations

import os

AUTHORITIES = "SSL_CERT_FILE"
"""OpenSSL reads the file that this variable names, or else the system's."""


def without_authorities() -> None:
    named = os.environ.get(AUTHORITIES)
    os.environ[AUTHORITIES] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        del os.environ[AUTHORITIES]
        if named is not None:
            os.environ[AUTHORITIES] = named
