"""The HTTP client of the command-line tool.

Tokens are read from a file or from the environment, since every user of a machine can read the arguments of a process.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import ssl
import sys
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import click

URL_DEFAULT = "http://127.0.0.1:9090"
PORT_DEFAULT = 9090
TIMEOUT_S = 60.0
FORM = "application/x-www-form-urlencoded"
LINE_BYTES_MAX = 200
TOKEN_BYTES_MAX = 1024
PIECE_BYTES = 1 << 20
ERROR_BYTES_MAX = 64 << 10
"""Of the body of an error, which says what is wrong."""


class CommandError(click.ClickException):
    """An error that is shown as one line; exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        (file or sys.stderr).write(f"triptych: {self.message}\n")

    def __str__(self) -> str:
        return self.message


class Away(CommandError):
    """The cluster cannot be reached, closes the connection, or answers with 503 or 429: a retry may succeed later."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How to reach a cluster. `ca`: certificates to verify the server with. `tls_cert`, `tls_key`: this client's
    certificate and key."""

    url: str
    token_file: Path | None = None
    ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A response. `date`: its Date header, or empty. `headers`: with names in lower case."""

    status: int
    body: bytes
    date: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Client:
    """One connection to the HTTP interface. Raises CommandError if a request is refused, and Away if the service cannot
    be reached or is overloaded.

    `authorization`: the Authorization header of every request. `tls`: the context for an https URL.
    """

    def __init__(self, url: str, authorization: str = "", tls: ssl.SSLContext | None = None) -> None:
        try:
            parts = urllib.parse.urlsplit(url if "//" in url else f"//{url}")
            host, port = parts.hostname, parts.port or PORT_DEFAULT
        except ValueError:
            raise CommandError(f"--url cannot be read; it must be such as {URL_DEFAULT}") from None
        if "@" in parts.netloc:
            raise CommandError(
                "--url has a user or a password, which all users of this machine can read; use --token-file or "
                "TRIPTYCH_TOKEN"
            )
        if parts.scheme not in ("", "http", "https") or not host:
            raise CommandError(f"--url is {url!r}; it must be such as {URL_DEFAULT}")
        self._url = url
        self._tls = tls
        self._headers = {"Content-Type": "application/json"}
        if authorization:
            self._headers["Authorization"] = authorization
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            self._connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=tls)
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    @property
    def url(self) -> str:
        return self._url

    @classmethod
    def of(cls, reach: Reach) -> Client:
        return cls(reach.url, authorization(reach.token_file), _tls(reach))

    def call(self, method: str, path: str, body: Any = None, **parameters: str | int) -> Any:
        """Send one request. Returns the JSON of the response."""
        data = None if body is None else json.dumps(body).encode()
        return self.content(self.send(method, _target(path, parameters), data))

    def octets(self, path: str, **parameters: str | int) -> bytes:
        """As `call` with GET, for a caller that parses the body itself."""
        answer = self.send("GET", _target(path, parameters))
        return answer.body if answer.status == 200 else self.content(answer)

    def form(self, path: str, fields: Mapping[str, str], timeout_s: float = TIMEOUT_S) -> Answer:
        """POST these parameters. Returns the response, whatever its status is. Raises Away."""
        return self.send("POST", path, urllib.parse.urlencode(fields).encode(), {"Content-Type": FORM}, timeout_s)

    def send(
        self,
        method: str,
        path: str,
        data: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Answer:
        """Send one request. Returns the response, whatever its status is. Raises Away."""
        self._wait_at_most(timeout_s)
        try:
            self._connection.request(method, path, data, {**self._headers, **(headers or {})})
            answer = self._connection.getresponse()
            texts = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, answer.read(), texts.get("date", ""), texts)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise Away(f"{self._url} does not answer: {_reason(error)}") from error

    def content(self, answer: Answer) -> Any:
        """The JSON of a response. Raises Away for status 429 and 503, for any other 5xx without JSON, and for truncated
        JSON. Raises CommandError for any other status than 200 and for a body that is not JSON, since a retry would not
        help."""
        try:
            content = json.loads(answer.body)
        except (ValueError, RecursionError):
            self._connection.close()
            # A proxy may report in HTML that its server is down or that there are too many requests.
            is_away = (
                answer.status == 429 or answer.status >= 500 or (answer.status == 200 and is_truncated(answer.body))
            )
            refusal = Away if is_away else CommandError
            text = _first_line(answer.body)
            raise refusal(f"{self._url} answers with status {answer.status} and what is not JSON{text}") from None
        if answer.status != 200:
            refusal = Away if answer.status in (429, 503) else CommandError
            texts = content if isinstance(content, dict) else {}
            raise refusal(texts.get("message") or texts.get("error") or f"status {answer.status}")
        return content

    def _wait_at_most(self, timeout_s: float) -> None:
        self._connection.timeout = timeout_s
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout_s)

    def again(self) -> Client:
        """A new connection to the same cluster."""
        return Client(self._url, self._headers.get("Authorization", ""), self._tls)

    def stream(self, target: str, **parameters: str | int | Sequence[str]) -> Iterator[bytes]:
        """Send a GET request. Yields the body of the response in pieces. Raises Away and CommandError as `content`
        does."""
        try:
            query = urllib.parse.urlencode(parameters, doseq=True)
            self._connection.request("GET", f"{target}?{query}", headers=self._headers)
            answer = self._connection.getresponse()
            if answer.status != 200:
                self.content(Answer(answer.status, answer.read(ERROR_BYTES_MAX)))
                raise CommandError(f"{self._url}{target}: status {answer.status}; it must be 200")
            while piece := answer.read(PIECE_BYTES):
                yield piece
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise CommandError(f"{self._url} does not answer: {_reason(error)}") from error

    def get(self, path: str, bytes_max: int, timeout_s: float) -> Answer:
        """Send one GET request over a new connection. Returns the response, whatever its status is. At most `bytes_max`
        bytes of its body are read. Raises OSError."""
        self._connection.close()
        self._connection.timeout = timeout_s
        try:
            self._connection.request("GET", path, headers=self._headers)
            answer = self._connection.getresponse()
            return Answer(answer.status, answer.read(bytes_max), answer.headers.get("Date", ""))
        except http.client.HTTPException as error:
            raise OSError(f"the response is not HTTP: {error!r}") from error
        finally:
            self._connection.close()


def is_truncated(body: bytes) -> bool:
    """Whether a JSON text is truncated. A proxy that uses HTTP/1.0 takes the end of a broken connection for the end of
    a long response."""
    import msgspec

    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        return str(error) == "Input data was truncated"
    return False


def _first_line(body: bytes) -> str:
    """The end of an error message that quotes the first line of a body; "" if the body is HTML or empty."""
    line = body[:LINE_BYTES_MAX].decode(errors="replace").strip().partition("\n")[0].rstrip()
    return f": {line}" if line and not line.startswith("<") else ""


def _target(path: str, parameters: Mapping[str, str | int]) -> str:
    return f"{path}?{urllib.parse.urlencode(parameters)}" if parameters else path


def _reason(error: Exception) -> str:
    """What an exception says, without the number and the file that the text of an OSError begins and ends with."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def authorization(token_file: Path | None) -> str:
    """The Authorization header for the token, or the user and password, in this file or in TRIPTYCH_TOKEN. Empty if
    there is neither."""
    text = os.environ.get("TRIPTYCH_TOKEN", "")
    if token_file is not None:
        try:
            with open(token_file) as file:
                text = file.read(TOKEN_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as error:
            raise CommandError(f"--token-file is {token_file}, which cannot be read: {_reason(error)}") from None
    text = text.strip()
    if not text and token_file is not None:
        raise CommandError(f"--token-file is {token_file}, which is empty")
    if not text:
        return ""
    if not text.isprintable():
        raise CommandError("the token is more than one line, or has a character that no header may have")
    return f"Basic {base64.b64encode(text.encode()).decode()}" if ":" in text else f"Bearer {text}"


def _tls(reach: Reach) -> ssl.SSLContext | None:
    if reach.ca is None and reach.tls_cert is None:
        return None
    try:
        context = ssl.create_default_context(cafile=reach.ca)
        if reach.tls_cert is not None:
            context.load_cert_chain(reach.tls_cert, reach.tls_key)
    except OSError as error:
        raise CommandError(f"--ca, --tls-cert or --tls-key cannot be used: {error}") from None
    return context
