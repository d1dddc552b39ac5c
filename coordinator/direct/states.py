"""Health and readiness checks, served without aiohttp (coordinator/direct/requests.py), since load balancers repeat
them all the time.

If the service is not ready, the check is left to aiohttp, whose response says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass

from coordinator.api.status import HEALTHY, READY
from coordinator.context import Context
from coordinator.direct.plain_heads import PlainHead
from coordinator.direct.requests import Headers
from coordinator.fanout.prompt_futures import PromptFuture
from coordinator.limits.admission import Holder
from coordinator.queries.running import RunningQuery


@dataclass(slots=True)
class _StateWork:
    text: bytes
    listed_as: str = ""
    summary: str = ""
    more_bytes: int = 0
    headers: Headers = (("Content-Type", "text/plain; charset=utf-8"),)

    def begin(self, holder: Holder) -> PromptFuture[None]:
        done = PromptFuture[None]()
        done.set_result(None)
        return done

    def listed(self, running: RunningQuery) -> None:
        """State checks are not listed as queries."""

    def body(self, result: None) -> bytes:
        return self.text


class DirectStates:
    """For the event loop's thread only. `text`: the response. `needs_workers`: only respond while all shards are
    loaded."""

    is_read = True
    encoding = ""
    body_bytes_max = 0

    def __init__(self, context: Context, path: str, text: str, *, needs_workers: bool) -> None:
        self._context = context
        self.path = path
        self._text = text.encode()
        self._needs_workers = needs_workers

    def takes(self, head: PlainHead) -> bool:
        """As `Endpoint.takes`. A query string with percent escapes is left to aiohttp, which checks the escapes."""
        if head.method != "GET" or b"%" in head.query:
            return False
        return not (self._needs_workers and self._context.links.unready())

    def work(self, head: PlainHead, body: bytes) -> _StateWork:
        return _StateWork(self._text)


def direct_states(context: Context) -> tuple[DirectStates, DirectStates]:
    return (
        DirectStates(context, "/-/healthy", HEALTHY, needs_workers=False),
        DirectStates(context, "/-/ready", READY, needs_workers=True),
    )
