"""Imports aiohttp without loading the CA certificates.

aiohttp loads them twice when it is imported, which takes 50 ms. It needs them only for requests without an SSL context
of their own, which this service does not make (`coordinator.prometheus_config.http_client`).
"""

from __future__ import annotations

import os

AUTHORITIES = "SSL_CERT_FILE"
"""The environment variable that names the file of CA certificates; without it, OpenSSL reads the system's file."""


def without_authorities() -> None:
    previous_value = os.environ.get(AUTHORITIES)
    os.environ[AUTHORITIES] = os.devnull
    try:
        import aiohttp  # noqa: F401
    finally:
        del os.environ[AUTHORITIES]
        if previous_value is not None:
            os.environ[AUTHORITIES] = previous_value
