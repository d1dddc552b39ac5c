"""Fetches the answers of targets within bounds of time and size: targets may be slow, send huge or endless answers, or
announce wrong sizes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from coordinator.outgoing import Resolver, blocking
from coordinator.parsing.gzip_members import GzipMembers
from coordinator.prometheus_config.http_client import HttpClientConfig
from shared.errors import ConfigError
from shared.version import version

SCRAPES_MAX = 500
"""Requests to targets that are under way at once. Others wait, and the wait counts towards their timeouts."""
BODIES_BYTES_MAX = 256 << 20
"""The limit on the answers of all targets, as they were sent, that are being read or wait to be parsed."""
REDIRECTS_MAX = 10
KEPT_CONNECTIONS_MAX = 500
"""A job with more targets opens a connection for each scrape, because each kept connection is an open file."""
CHUNK_BYTES = 256 << 10


class FetchFailed(Exception):
    """A target has not answered properly; the text says why."""


@dataclass(slots=True)
class ScrapeResponse:
    """`body` as it was sent. `held` bytes count towards BODIES_BYTES_MAX until `Fetches.release`."""

    body: bytes
    encoding: str
    content_type: str
    held: int


class Fetches:
    """The requests of all jobs. For the event loop's thread only."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(SCRAPES_MAX)
        self._held = 0

    def hold(self, size: int) -> None:
        """Raises FetchFailed when the answers of all targets are too many bytes."""
        if self._held + size > BODIES_BYTES_MAX:
            raise FetchFailed(
                f"the answers of all targets that are being read have {self._held} bytes, and no room for {size} more "
                f"within {BODIES_BYTES_MAX}"
            )
        self._held += size

    def release(self, size: int) -> None:
        self._held -= size

    async def get(
        self, client: Client, url: str, headers: Mapping[str, str], timeout_s: float, bytes_max: int, keeps: bool
    ) -> ScrapeResponse:
        """The body of a 200. Raises FetchFailed."""
        held = 0
        try:
            async with asyncio.timeout(timeout_s), self._turns, client.request(url, headers) as response:
                if response.status != 200:
                    raise FetchFailed(f"server returned HTTP status {response.status} {response.reason or ''}".rstrip())
                announced = response.content_length
                if announced is not None and announced > bytes_max:
                    raise FetchFailed(f"the answer has {announced} bytes; the limit is {bytes_max}")
                chunks = []
                async for chunk in response.content.iter_any():
                    self.hold(len(chunk))
                    held += len(chunk)
                    if held > bytes_max:
                        raise FetchFailed(f"the answer has more than the limit of {bytes_max} bytes")
                    chunks.append(chunk)
                if not keeps:
                    response.close()
                encoding = response.headers.get("Content-Encoding", "").strip().lower()
                answer = ScrapeResponse(b"".join(chunks), encoding, response.headers.get("Content-Type", ""), held)
                held = 0
                return answer
        except TimeoutError:
            raise FetchFailed(f"it has not answered within {timeout_s:g} s") from None
        except aiohttp.TooManyRedirects:
            raise FetchFailed(f"it has redirected more than {REDIRECTS_MAX} times") from None
        except (aiohttp.ClientError, ssl.SSLError, OSError, ValueError, ConfigError) as error:
            raise FetchFailed(str(error) or type(error).__name__) from None
        finally:
            self.release(held)


class Client:
    """The connections of one job, or of one discovery."""

    def __init__(self, http: HttpClientConfig, keep_s: float) -> None:
        self._http = http
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=keep_s, ssl=http.tls, resolver=Resolver())
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"User-Agent": f"Triptych/{version()}"},
        )

    def request(self, url: str, headers: Mapping[str, str]) -> Any:
        return _Request(self._session, self._http, url, headers)

    async def close(self) -> None:
        await self._session.close()


class _Request:
    """A request under way, whose connection is released at the end."""

    def __init__(
        self, session: aiohttp.ClientSession, http: HttpClientConfig, url: str, headers: Mapping[str, str]
    ) -> None:
        self._session = session
        self._http = http
        self._url = url
        self._headers = headers
        self._response: aiohttp.ClientResponse | None = None

    async def __aenter__(self) -> aiohttp.ClientResponse:
        http = self._http
        own = http.request_headers() if http.secret_file is None else await blocking(http.request_headers)
        self._response = await self._session.get(
            self._url,
            headers={**self._headers, **own},
            allow_redirects=http.follow_redirects,
            max_redirects=REDIRECTS_MAX,
            server_hostname=http.server_name,
        )
        return self._response

    async def __aexit__(self, *_: object) -> None:
        if self._response is not None:
            self._response.release()


def inflated(answer: ScrapeResponse, bytes_max: int) -> bytes:
    """The decompressed body. Raises FetchFailed for a body that is not gzip, or too large. Work for a thread."""
    if answer.encoding in ("", "identity"):
        return answer.body
    if answer.encoding != "gzip":
        raise FetchFailed(f"the answer has the encoding {answer.encoding[:50]!r}; it must be gzip, or none")
    members, pieces, size = GzipMembers(answer.body), list[bytes](), 0
    try:
        while piece := members.read(CHUNK_BYTES):
            size += len(piece)
            if size > bytes_max:
                raise FetchFailed(f"the answer has more than the limit of {bytes_max} bytes once it is decompressed")
            pieces.append(piece)
    except ValueError as error:
        raise FetchFailed(f"the answer {error}") from None
    return b"".join(pieces)
