"""Requests to a cluster that may be down, frozen or silent: every one has a deadline for its whole answer."""

from __future__ import annotations

import http.client
import json
import time
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

JSON = {"Content-Type": "application/json"}
READ_WITHIN_S = 30.0
"""A read that is not answered whole by then is stuck: longer than any deadline of the service in these scenarios, and
than any fault lasts."""


class Silence(Exception):
    """No whole answer: the connection was refused or broke, or (`timed_out`) the time was over."""

    def __init__(self, text: str, *, timed_out: bool, connected: bool) -> None:
        super().__init__(text)
        self.timed_out, self.connected = timed_out, connected


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def complete(self) -> bool:
        """A success without a warning."""
        return self.status == 200 and not self.json().get("warnings")


class Client:
    """To the cluster on `port`; a connection a request, as the coordinator comes and goes."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        within_s: float = READ_WITHIN_S,
    ) -> Answer:
        """Raises Silence."""
        give_up = time.monotonic() + within_s
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=within_s)
        connected = False
        try:
            connection.connect()
            connected = True
            connection.request(method, path, body=body, headers=dict(headers or {}))
            answer = connection.getresponse()
            pieces = []
            while piece := answer.read1(1 << 20):
                pieces.append(piece)
                if time.monotonic() > give_up:
                    raise TimeoutError(f"{sum(map(len, pieces))} bytes came, and no end")
            if answer.length:
                raise http.client.IncompleteRead(b"".join(pieces), answer.length)
            return Answer(answer.status, b"".join(pieces))
        except (OSError, http.client.HTTPException) as error:
            timed_out = isinstance(error, TimeoutError)
            raise Silence(f"{method} {path}: {error!r}", timed_out=timed_out, connected=connected) from error
        finally:
            connection.close()

    def listen(self, path: str, parameters: Mapping[str, str], for_s: float) -> list[dict[str, str]]:
        """The events of a stream that were whole within this time, each its fields; [] when it was refused."""
        give_up = time.monotonic() + for_s
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=for_s)
        text = b""
        try:
            headers = {"Accept": "text/event-stream"}
            connection.request("GET", f"{path}?{urllib.parse.urlencode(parameters)}", headers=headers)
            answer = connection.getresponse()
            while answer.status == 200 and (left_s := give_up - time.monotonic()) > 0 and connection.sock:
                connection.sock.settimeout(left_s)
                piece = answer.read1(1 << 16)
                if not piece:
                    break
                text += piece
        except (OSError, http.client.HTTPException):
            pass  # the time is over, or the coordinator is gone: what came before counts
        finally:
            connection.close()
        whole = text.decode().split("\n\n")[:-1]
        return [dict(line.split(": ", 1) for line in event.splitlines() if ": " in line) for event in whole]

    def get(self, path: str, parameters: Mapping[str, str], within_s: float = READ_WITHIN_S) -> Answer:
        return self.send("GET", f"{path}?{urllib.parse.urlencode(parameters)}", within_s=within_s)

    def post(self, path: str, content: Any, within_s: float) -> Answer:
        return self.send("POST", path, json.dumps(content).encode(), JSON, within_s)
