"""Sends the batches of an import in order over a few connections, and records its progress.

Samples are keyed by series and time, so a batch that is sent twice changes nothing. The progress is stored in a file
beside the source, from which an interrupted import continues.
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
"""The next request is already on its way while the server processes the last one."""
BATCHES_AHEAD = 2 * CONNECTIONS
PATIENCE_S = 60.0
"""How long an import waits for a cluster that is down or overloaded before it gives up. It can be continued later."""
BACK_OFF_FIRST_S, BACK_OFF_MAX_S = 0.2, 5.0
SAVE_EVERY_S = 1.0
WRITTEN = "x-prometheus-remote-write-samples-written", "x-prometheus-remote-write-histograms-written"
"""The headers of an answer that say how many samples were stored. Imports count histograms in the first one."""
STATE_SUFFIX = ".triptych-import"


@dataclass(frozen=True, slots=True)
class ImportBatch:
    """One request. `position`: the position in its source behind it, in the unit of the source; `size`: the size of its
    part of the source, in the same unit."""

    path: str
    headers: Mapping[str, str]
    body: bytes
    position: int
    size: int


@dataclass(slots=True)
class State:
    """The progress of an import: the name of each source, what identifies its content (its size and time) and the
    position behind the acknowledged part. `path` None: it is not stored."""

    path: Path | None
    target: str
    sources: dict[str, list[Any]] = field(default_factory=dict)
    saved_at: float = 0.0

    @classmethod
    def read(cls, path: Path | None, target: str) -> State:
        """The state of an interrupted import to the same cluster, or a new one. Raises CommandError."""
        state = cls(path, target)
        if path is None or not path.exists():
            return state
        try:
            saved = json.loads(path.read_text())
            if saved["target"] == target:
                state.sources = {
                    str(name): [str(saved_position[0]), int(saved_position[1])]
                    for name, saved_position in saved["sources"].items()
                }
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            raise CommandError(f"{path} is not the state of an import ({error}); remove it to begin anew") from error
        return state

    def position(self, name: str, identity: str) -> int:
        """Where to continue; 0 for a source that is new or has changed."""
        saved_position = self.sources.get(name)
        return saved_position[1] if saved_position is not None and saved_position[0] == identity else 0

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
    """The outcome of all batches so far. `refused`: messages of the server about items that it did not store."""

    samples: int = 0
    requests: int = 0
    refused: list[str] = field(default_factory=list)


class Uploader:
    """`tell`: called with each acknowledged batch, in order."""

    def __init__(self, client: Client, outcome: Outcome, tell: Callable[[ImportBatch], None]) -> None:
        self._outcome = outcome
        self._tell = tell
        self._free: deque[Client] = deque(client.again() for _ in range(CONNECTIONS))
        self._pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="import")
        self._is_over = False

    def send(self, batches: Iterator[ImportBatch], acknowledge: Callable[[int], None]) -> None:
        """Send all batches. `acknowledge` is called with the position behind each stored batch, in order. Raises
        CommandError, and what reading the batches raises."""
        under_way: deque[tuple[ImportBatch, Future[tuple[int, str]]]] = deque()
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

    def _finish(self, batch: ImportBatch, future: Future[tuple[int, str]], acknowledge: Callable[[int], None]) -> None:
        samples, refusal = future.result()
        self._outcome.samples += samples
        self._outcome.requests += 1
        if refusal:
            self._outcome.refused.append(refusal)
        acknowledge(batch.position)
        self._tell(batch)

    def _post(self, batch: ImportBatch) -> tuple[int, str]:
        """(how many samples were stored, the server's message about the others). Raises CommandError."""
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
    """The result of `send`, which is called again while the cluster is down or overloaded, for PATIENCE_S or until
    `is_over`. Raises CommandError, whose text says what comes `then`."""
    give_up, back_off_s = time.monotonic() + PATIENCE_S, BACK_OFF_FIRST_S
    while True:
        try:
            return send()
        except Away as error:
            if time.monotonic() > give_up or is_over():
                raise CommandError(f"{error}; {then}") from error
            time.sleep(back_off_s)
            back_off_s = min(BACK_OFF_MAX_S, 2 * back_off_s)


def _stored(client: Client, batch: ImportBatch) -> tuple[int, str]:
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
