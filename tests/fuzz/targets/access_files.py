"""Files of users and tokens, the header that they are compared with, and certificates whose end is read."""

from __future__ import annotations

import asyncio
import binascii
from collections.abc import Iterator
from pathlib import Path

from coordinator.access import tokens, web_config
from coordinator.access.certificates import expires_at
from coordinator.access.credentials import Credentials
from coordinator.access.passwords import Comparisons
from coordinator.access.tokens import Token
from shared.errors import ConfigError, Unauthorized
from tests.fuzz.target import Target

HASH = "$2b$04$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"


def _web(data: bytes) -> None:
    """What is read has paths and hashes that can be used."""
    config = web_config.parse(data, Path("web.yml"))
    assert all(hashed.startswith("$2") for hashed in config.users().values())
    assert all("\n" not in text for text in config.headers().values())


def _tokens(data: bytes) -> None:
    for token in tokens.parse(data, Path("tokens.toml")).values():
        assert any(token.roles)


class _FreeComparisons(Comparisons):
    """The right secret is `p`."""

    def begin(self, client: str, secret: bytes, hashed: str) -> asyncio.Future[bool]:
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.set_result(secret == b"p")
        return future


def _header(data: bytes) -> None:
    known = Credentials({"u": HASH}, {"t": Token(HASH, metrics="read")}, _FreeComparisons())
    header = data.decode("utf-8", "surrogateescape")
    assert known.remembered(header) is None
    asyncio.run(known.compared(header, "here"))


def _certificate(data: bytes) -> None:
    """Some date, or none."""
    ends_at = expires_at(b"-----BEGIN CERTIFICATE-----\n%b-----END" % binascii.b2a_base64(data))
    assert ends_at is None or -1e11 < ends_at < 1e12


def _web_files() -> Iterator[bytes]:
    tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n"
    yield f"{tls}  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [x]\n".encode()
    yield f"{tls}  cipher_suites: [TLS_AES_128_GCM_SHA256]\n  curve_preferences: [X25519]".encode()
    yield b"http_server_config: {http2: no, headers: {X-Frame-Options: deny}}"
    yield f"basic_auth_users: {{u: {HASH}}}".encode()
    yield b"rate_limit: {interval: 1s, burst: 20}"


def _token_files() -> Iterator[bytes]:
    yield f'[a]\nhash = "{HASH}"\nmetrics = "read"\nshare = 5\nrequests_per_second = 0.5\n'.encode()


def _headers() -> Iterator[bytes]:
    yield from (b"Basic dTpw", b"Bearer triptych.t.secret", b"basic \xff", b"Bearer triptych.x.y")


def _certificates() -> Iterator[bytes]:
    """No more of a certificate than is read."""
    for end in (b"\x17\x0d500101000000Z", b"\x18\x0f20500101000000Z"):
        validity = b"\x17\x0d200101000000Z" + end
        fields = b"\xa0\x03\x02\x01\x02" + b"\x02\x01\x01" + b"\x30\x00" * 2 + b"\x30%c%b" % (len(validity), validity)
        yield b"\x30\x82\x00%c\x30%c%b" % (len(fields) + 2, len(fields), fields)


TARGETS = [
    Target(
        "web-config",
        _web,
        _web_files,
        refusals=(ConfigError,),
        tokens=("&a", "*a", "<<: ", "!!binary", "? ", "---\n", "null", "TLS13", "[", "}", "|\n", "1e3"),
    ),
    Target("token-file", _tokens, _token_files, refusals=(ConfigError,), tokens=("nan", "inf", "admin", "[[", "none")),
    Target("certificate", _certificate, _certificates, tokens=("\x30\x80", "\x18\x0f", "Z")),
    Target(
        "authorization",
        _header,
        _headers,
        refusals=(Unauthorized,),
        tokens=("Basic", "Bearer", "triptych."),
        bytes_max=1200,
    ),
]
