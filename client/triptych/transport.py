"""Sends one request over httpx and reads the whole answer, within a time limit."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Union
from urllib.parse import urlsplit

import anyio
import httpx

from triptych.calls import Call, ServerResponse
from triptych.errors import ConnectionFailed, NotConnected, NotTrusted, TimedOut, error_of

URL_DEFAULT = "http://127.0.0.1:9090"
CONNECT_S_MAX = 10.0
LATE_S = 0.1
"""Added to the time of httpx's own timeouts, which come first because they say more precisely what was waited for."""
KEEP_ALIVE_S = 30.0
"""Connections that have not been used for this time are closed."""
USER_AGENT = "triptych-client/0.1"
Certificate = Union[str, tuple[str, str]]


@dataclass(frozen=True)
class Connection:
    """How the server is reached. `url`: where it listens, by default TRIPTYCH_URL or http://127.0.0.1:9090; a path of
    it stands before that of each request.

    `token`: of the file of tokens, by default TRIPTYCH_TOKEN; or `user` and `password`. `ca`: file of certificates that
    the server's is verified with. `certificate`: file with that of this client and its key, or both files. Raises
    ValueError for a URL that is none or has credentials, OSError for files that cannot be read.
    """

    url: str = ""
    token: str = field(default="", repr=False)
    user: str = ""
    password: str = field(default="", repr=False)
    ca: str = ""
    certificate: Certificate | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def base(self) -> str:
        url = self.url or os.environ.get("TRIPTYCH_URL", "") or URL_DEFAULT
        url = url if "//" in url else f"http://{url}"
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"url is {url!r}; it must be such as {URL_DEFAULT}")
        if "@" in parts.netloc:
            raise ValueError("url has a user or a password, which ends up in logs; use token, or user and password")
        return url.rstrip("/")

    def options(self) -> dict[str, Any]:
        """Of httpx's clients."""
        return {
            "headers": {"User-Agent": USER_AGENT, **self._authorization(), **self.headers},
            "verify": self._tls() if self.base.startswith("https") else True,
            "limits": httpx.Limits(keepalive_expiry=KEEP_ALIVE_S),
            "follow_redirects": False,
        }

    def _authorization(self) -> dict[str, str]:
        if self.token and self.user:
            raise ValueError("token and user exclude each other")
        token = "" if self.user else self.token or os.environ.get("TRIPTYCH_TOKEN", "").strip()
        pair = f"{self.user}:{self.password}" if self.user else token if ":" in token else ""
        if pair:
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.ca or None)
        if self.certificate is not None:
            files = (self.certificate,) if isinstance(self.certificate, str) else self.certificate
            context.load_cert_chain(*files)
        return context


@contextmanager
def _errors(call: Call[Any]) -> Iterator[None]:
    """Raises httpx's errors as those of this client."""
    what = f"{call.method} {call.target.partition('?')[0]}"
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        kind = NotTrusted if _is_of_certificate(error) else NotConnected
        raise kind(f"{what}: no connection to the server: {error or type(error).__name__}") from error
    except httpx.TimeoutException as error:
        raise TimedOut(f"{what}: no answer in time: {error or type(error).__name__}") from error
    except (httpx.TransportError, httpx.DecodingError) as error:
        raise ConnectionFailed(f"{what}: the connection has failed: {error or type(error).__name__}") from error


def _is_of_certificate(error: BaseException | None) -> bool:
    """Whether the error was raised because the server's certificate could not be verified."""
    while error is not None and not isinstance(error, ssl.SSLCertVerificationError):
        error = error.__cause__ or error.__context__
    return error is not None


def _timeout(left_s: float) -> httpx.Timeout:
    return httpx.Timeout(left_s, connect=min(left_s, CONNECT_S_MAX))


def _require_before(give_up: float, call: Call[Any]) -> None:
    """Raises TimedOut after `give_up`: httpx bounds the wait for each piece, but not for all pieces together."""
    if time.monotonic() > give_up:
        raise _incomplete(call)


def _incomplete(call: Call[Any]) -> TimedOut:
    return TimedOut(f"{call.method} {call.target.partition('?')[0]}: the answer is not complete in time")


def _checked(response: httpx.Response, body: bytes) -> ServerResponse:
    headers = {name.lower(): value for name, value in response.headers.items()}
    if not 200 <= response.status_code < 300:
        raise error_of(response.status_code, headers, body)
    return ServerResponse(response.status_code, headers, body)


class Transport:
    """Connections that are used again and again, by any number of threads. `http`: another httpx.Client to use."""

    def __init__(self, connection: Connection, http: httpx.Client | None = None) -> None:
        self._base = connection.base
        self._connection = connection
        self._given = http
        self._connect()

    def _connect(self) -> None:
        self._http = self._given or httpx.Client(**self._connection.options())
        self._pid = os.getpid()  # last: as long as it is another, no thread of a forked process uses `_http`

    def _own(self) -> httpx.Client:
        """A forked process must not use the connections of its parent, whose locks may stay locked for ever."""
        if self._pid != os.getpid():
            self._connect()
        return self._http

    def send(self, call: Call[Any], left_s: float) -> ServerResponse:
        """Raises TriptychError for anything but a 2xx."""
        give_up = time.monotonic() + left_s
        with (
            _errors(call),
            self._own().stream(
                call.method,
                self._base + call.target,
                content=call.body,
                headers=dict(call.headers),
                timeout=_timeout(left_s),
            ) as response,
        ):
            pieces = []
            for piece in response.iter_bytes():
                _require_before(give_up, call)
                pieces.append(piece)
            return _checked(response, b"".join(pieces))

    def close(self) -> None:
        self._own().close()


class AsyncTransport:
    """As Transport, for one event loop."""

    def __init__(self, connection: Connection, http: httpx.AsyncClient | None = None) -> None:
        self._base = connection.base
        self._http = http or httpx.AsyncClient(**connection.options())

    async def send(self, call: Call[Any], left_s: float) -> ServerResponse:
        """Raises TriptychError for anything but a 2xx."""
        try:
            # asyncio.wait_for loses a cancellation that comes together with the answer, up to Python 3.11.
            with anyio.fail_after(left_s + LATE_S):
                return await self._answer(call, left_s)
        except TimeoutError as error:
            raise _incomplete(call) from error

    async def _answer(self, call: Call[Any], left_s: float) -> ServerResponse:
        with _errors(call):
            async with self._http.stream(
                call.method,
                self._base + call.target,
                content=call.body,
                headers=dict(call.headers),
                timeout=_timeout(left_s),
            ) as response:
                return _checked(response, await response.aread())

    async def close(self) -> None:
        await self._http.aclose()
