"""Files of users and tokens, and the header that they are compared with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from coordinator.access import tokens, web_config
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


def _web_files() -> Iterator[bytes]:
    tls = "tls_server_config:\n  cert_file: a\n  key_file: b\n"
    yield f"{tls}  client_auth_type: RequireAndVerifyClientCert\n  client_allowed_sans: [x]\n".encode()
    yield f"{tls}  cipher_suites: [TLS_AES_128_GCM_SHA256]\n  curve_preferences: [X25519]".encode()
    yield b"http_server_config: {http2: no, headers: {X-Frame-Options: deny}}"
    yield f"basic_auth_users: {{u: {HASH}}}".encode()


def _token_files() -> Iterator[bytes]:
    yield f'[a]\nhash = "{HASH}"\nmetrics = "read"\nshare = 5\nrequests_per_second = 0.5\n'.encode()


def _headers() -> Iterator[bytes]:
    yield from (b"Basic dTpw", b"Bearer triptych.t.secret", b"basic \xff", b"Bearer triptych.x.y")


TARGETS = [
    Target(
        "web-config",
        _web,
        _web_files,
        refusals=(ConfigError,),
        tokens=("&a", "*a", "<<: ", "!!binary", "? ", "---\n", "null", "TLS13", "[", "}", "|\n", "1e3"),
    ),
    Target("token-file", _tokens, _token_files, refusals=(ConfigError,), tokens=("nan", "inf", "admin", "[[", "none")),
    Target(
        "authorization",
        _header,
        _headers,
        refusals=(Unauthorized,),
        tokens=("Basic", "Bearer", "triptych."),
        bytes_max=1200,
    ),
]
