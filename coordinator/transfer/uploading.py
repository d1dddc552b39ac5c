"""Sends the batches of an import one behind the other over a few connections, and notes how far it is.

Samples are keyed by series and time, so a batch that is sent twice changes nothing. What is acknowledged is noted in a
file beside the source, and an import that was interrupted goes on from there.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coordinator.command_client import Away, Client, CommandError

T = TypeVar("T")

CONNECTIONS = 2
"""A request is on its way while the next one is read by the server."""
BATCHES_AHEAD = 2 * CONNECTIONS
PATIENCE_S = 60.0
"""How long an import waits for a cluster that is away or has too much to do, before it gives up; it can go on later."""
BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.2, 5.0
SAVE_EVERY_S = 1.0
WRITTEN = "x-prometheus-remote-write-samples-written", "x-prometheus-remote-write-histograms-written"
"""Headers of an answer: how many samples are stored. Imports count histograms in the first one."""
STATE_SUFFIX = ".triptych-import"


@dataclass(frozen=True, slots=True)
class Batch:
    """One request. `position`: where its source goes on behind it, as the source counts; `size`: how much of the source
    it is, in the same unit."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    position: int
    size: int


@dataclass(slots=True)
class State:
    """How far the sources of an import are: by name, what identifies the source (its size and time) and the position
    behind what is acknowledged. `path` None: nothing is kept."""

    path: Path | None
    target: str
    sources: dict[str, list[Any]] = field(default_factory=dict)
    saved_at: float = 0.0

    @classmethod
    def read(cls, path: Path | None, target: str) -> State:
        """The state of an import to the same cluster that was interrupted, or a new one. Raises CommandError."""
        state = cls(path, target)
        if path is None or not path.exists():
            return state
        try:
            kept = json.loads(path.read_text())
            if kept["target"] == target:
                state.sources = {str(name): [str(own[0]), int(own[1])] for name, own in kept["sources"].items()}
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CommandError(f"{path} is not the state of an import ({error}); remove it to begin anew") from error
        return state

    def position(self, name: str, identity: str) -> int:
        """Where to go on; 0 for a source that is new or has changed."""
        own = self.sources.get(name)
        return own[1] if own is not None and own[0] == identity else 0

    def acknowledge(self, name: str, identity: str, position: int) -> None:
        self.sources[name] = [identity, position]
        if time.monotonic() - self.saved_at > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        self.saved_at = time.monotonic()
        if self.path is None or not self.sources:
            return
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            temporary.write_text(json.dumps({"target": self.target, "sources": self.sources}))
            os.replace(temporary, self.path)
        except OSError as error:
            raise CommandError(
                f"{self.path}, which says how far the import is, cannot be written: {error}; --state names another file"
            ) from error

    def done(self) -> None:
        if self.path is not None:
            self.path.unlink(missing_ok=True)


@dataclass(slots=True)
class Outcome:
    """Of all batches so far. `refused`: messages of the server about items that it did not store."""

    samples: int = 0
    requests: int = 0
    refused: list[str] = field(default_factory=list)


class Uploader:
    """`tell`: called with each batch that is acknowledged, in order."""

    def __init__(self, client: Client, outcome: Outcome, tell: Callable[[Batch], None]) -> None:
        self._outcome = outcome
        self._tell = tell
        self._free: deque[Client] = deque(client.again() for _ in range(CONNECTIONS))
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="import")
        self._is_over = False

    def send(self, batches: Iterator[Batch], acknowledge: Callable[[int], None]) -> None:
        """Send all batches; `acknowledge` is called with the position behind each one that is stored, in order. Raises
        CommandError, and what reading the batches raises."""
        under_way: deque[tuple[Batch, Future[tuple[int, str]]]] = deque()
        try:
            for batch in batches:
                under_way.append((batch, self._pool.submit(self._post, batch)))
                if len(under_way) >= BATCHES_AHEAD:
                    self._finish(*under_way.popleft(), acknowledge)
            while under_way:
                self._finish(*under_way.popleft(), acknowledge)
        except BaseException:
            self._is_over = True
            for _, future in under_way:
                future.cancel()
            raise

    def close(self) -> None:
        self._is_over = True
        self._pool.shutdown(cancel_futures=True)

    def _finish(self, batch: Batch, future: Future[tuple[int, str]], acknowledge: Callable[[int], None]) -> None:
        samples, refusal = future.result()
        self._outcome.samples += samples
        self._outcome.requests += 1
        if refusal:
            self._outcome.refused.append(refusal)
        acknowledge(batch.position)
        self._tell(batch)

    def _post(self, batch: Batch) -> tuple[int, str]:
        """(how many samples are stored, what the server says of others). Raises CommandError."""
        client = self._free.popleft()
        try:
            return patiently(partial(_stored, client, batch), is_over=lambda: self._is_over)
        finally:
            self._free.append(client)


def patiently(
    send: Callable[[], T],
    then: str = "the same command goes on where this one ends",
    is_over: Callable[[], bool] = lambda: False,
) -> T:
    """What `send` returns, which is called again while the cluster is away or has too much to do, for PATIENCE_S or
    until `is_over`. Raises CommandError, which says what comes `then`."""
    give_up, back_off_s = time.monotonic() + PATIENCE_S, BACK_OFF_FIRST_S
    while True:
        try:
            return send()
        except Away as error:
            if time.monotonic() > give_up or is_over():
                raise CommandError(f"{error}; {then}") from error
            time.sleep(back_off_s)
            back_off_s = min(BACK_OFF_MAX_S, 2 * back_off_s)


def _stored(client: Client, batch: Batch) -> tuple[int, str]:
    answer = client.send("POST", batch.path, batch.body, batch.headers)
    written = [text for text in (answer.headers.get(name, "") for name in WRITTEN) if text.isdecimal()]
    samples = sum(map(int, written))
    if answer.status in (200, 204):
        return samples, ""
    try:
        content = json.loads(answer.body)
        text = content.get("error") or content.get("message") or ""
    except (ValueError, AttributeError):
        text = ""
    text = text or f"status {answer.status}"
    if answer.status in (429, 500, 502, 503, 504):
        raise Away(text)
    if answer.status == 400 and written:
        return samples, text
    raise CommandError(text)
