"""Views of the data directory: all of its files as they were at one moment, in a directory beside them.

A view is laid out like a data directory and consists mostly of hard links, so it costs next to nothing. It is made
while the cluster serves. Writes are held back only while the workers freeze their part (`barrier`), never longer than
`PAUSE_MAX_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from coordinator.fanout.calls import WorkerReply
from coordinator.fanout.links import Links
from coordinator.log.area import LogArea
from coordinator.vectors.area import VectorArea
from shared.durable import DIRECTORY_MODE, make_directory, sync_directory, sync_tree
from shared.errors import BadData, NotFound, Unavailable
from shared.manifest import Manifest, copy_of
from shared.messages.backup import VIEWS, ViewBody
from shared.telemetry import event
from shared.wire import pack

SNAPSHOTS = "snapshots"
PREPARE_S, FINISH_S = 60.0, 60.0
"""How long the workers may take for their work before and after the moment. Writes continue meanwhile."""
RECOVERY_S = 10.0
"""How long a view waits for the recovery of the log after a start."""
PAUSE_MAX_S = 2.0
"""How long writes are held back at most."""
DRAIN_S, DRAIN_POLLS = 0.5, 250
"""How long a view waits for writes in progress. A slower write may be in the view in part, as after a crash: it has not
been acknowledged."""
LEASE_S = 30.0
"""A view that was not renewed for this long is removed: its user has been killed."""
DOCUMENTS = (
    ("sequencer", "state"),
    ("sequencer", "policies"),
    ("vector", "*.json"),
    ("vector", "*.damaged*"),
    ("wal", "workers"),
)
"""Small documents of the coordinator and of the supervisor: (directory, pattern of names)."""


@dataclass(slots=True)
class View:
    """`path`: the view's directory. `moment_ms`: Unix time of the moment. `pause_ms`: how long writes were held back.
    `warnings`: damage that the cluster knows of, which the view therefore has too. `released`: set when the view is
    removed."""

    id: str
    path: Path
    moment_ms: int
    pause_ms: float
    warnings: list[str]
    expires_at: float = 0.0
    released: asyncio.Event = field(default_factory=asyncio.Event)


class Views:
    """One per coordinator, for its event loop's thread only. There is one view at a time."""

    def __init__(self, data: Path, links: Links, log: LogArea, vectors: VectorArea, identity: Manifest) -> None:
        self._data = data
        self._base = data / VIEWS
        self._links = links
        self._log = log
        self._vectors = vectors
        self._identity = identity
        self._is_busy = False
        self._leased: View | None = None
        self._keeping: asyncio.Task[None] | None = None
        """Moves the last snapshot to its final place."""
        self._removals: set[asyncio.Task[None]] = set()
        self._expiry: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Remove the views that an earlier coordinator left, and begin to remove views that nobody renews."""
        await asyncio.to_thread(shutil.rmtree, self._base, True)
        self._expiry = asyncio.create_task(self._expire_forever())

    async def stop(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        if self._leased is not None:
            await self.release(self._leased.id)
        await asyncio.gather(*self._removals)

    # Views that a client uses

    async def lease(self) -> View:
        """Make a view that exists until it is released or was not renewed for `LEASE_S`. Raises Unavailable."""
        with self._alone():
            self._leased = await self._make()
            self._leased.expires_at = time.monotonic() + LEASE_S
            return self._leased

    def renew(self, view_id: str) -> View:
        """The view, whose lease is extended to `LEASE_S` from now. Raises NotFound."""
        view = self._leased
        if view is None or view.id != view_id:
            raise NotFound(f"there is no view {view_id!r}; it is removed when nobody has renewed it for {LEASE_S:g} s")
        view.expires_at = time.monotonic() + LEASE_S
        return view

    async def hold(self, view_id: str, seconds: float) -> View:
        """Return the view after this time. If cancelled earlier, because the client is gone, remove the view, so that
        the next backup need not wait for the end of the lease. Raises NotFound, also if the view is released
        meanwhile."""
        view = self.renew(view_id)
        try:
            async with asyncio.timeout(seconds):
                await view.released.wait()
        except TimeoutError:
            return self.renew(view_id)
        except asyncio.CancelledError:
            if self._leased is view:
                event(logging.WARNING, "the command of a backup is gone, its view is removed", view=view.id)
                removal = asyncio.create_task(self._remove(view))
                self._leased = None
                self._removals.add(removal)
                removal.add_done_callback(self._removals.discard)
            raise
        return self.renew(view_id)

    async def release(self, view_id: str) -> None:
        """Remove the view. Raises NotFound."""
        view = self.renew(view_id)
        self._leased = None
        await self._remove(view)

    async def _remove(self, view: View) -> None:
        view.released.set()
        await asyncio.to_thread(shutil.rmtree, view.path, True)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 10)
            view = self._leased
            if view is not None and time.monotonic() > view.expires_at:
                event(logging.WARNING, "a backup has not been heard of, its view is removed", view=view.id)
                await self.release(view.id)

    # Snapshots, which stay

    async def snapshot(self, *, skip_head: bool = False) -> str:
        """Make a view that stays in `snapshots/` of the data directory, and return its name; it is on the disk when
        this returns. `skip_head`: without the samples that are not in blocks yet. Raises Unavailable."""
        with self._alone():
            view = await self._make(skip_head)
            self._keeping = asyncio.create_task(self._keep_view(view))
            try:
                await asyncio.shield(self._keeping)
            except asyncio.CancelledError:
                # The client has left, but the thread continues: the next view would remove what it is about to move.
                await asyncio.wait((self._keeping,))
                raise
            return view.id

    async def _keep_view(self, view: View) -> None:
        try:
            await asyncio.to_thread(_keep, view.path, self._data / SNAPSHOTS / view.id)
        except OSError as error:
            await asyncio.to_thread(shutil.rmtree, view.path, True)
            raise Unavailable(f"the snapshot cannot be written: {error.strerror or error}") from error

    # Making one

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        is_keeping = self._keeping is not None and not self._keeping.done()
        if self._is_busy or is_keeping or self._leased is not None:
            what = "another one is being made"
            if self._leased is not None:
                what = f"{self._leased.id} is being copied, or its command was killed less than {LEASE_S:g} s ago"
            raise Unavailable(f"there is one backup or snapshot at a time, and {what}; try again later")
        self._is_busy = True
        try:
            yield
        finally:
            self._is_busy = False

    async def _make(self, skip_head: bool = False) -> View:
        now_s = time.time()
        view_id = view_name(now_s)
        path = self._base / view_id
        self._links.require(range(self._links.shards))
        await self._log.recovery.wait_complete(RECOVERY_S)
        is_made = False
        try:
            await asyncio.to_thread(shutil.rmtree, self._base, True)  # what late workers have written to earlier views
            await asyncio.to_thread(_begin, path, self._identity)
            await self._ask("backup.prepare", ViewBody(view_id), PREPARE_S)
            pause_ms = await self._freeze(view_id, path)
            replies = await self._ask("backup.finish", ViewBody(view_id, skip_head), FINISH_S)
            is_made = True
        except TimeoutError:
            raise Unavailable(
                f"the workers did not freeze their part within {PAUSE_MAX_S:g} s, and writes are not held back longer; "
                "try again later"
            ) from None
        except OSError as error:
            raise Unavailable(f"a view of the data directory cannot be made: {error.strerror or error}") from error
        finally:
            if not is_made:
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, path, True))
        warnings = [text for reply in replies for text in reply.message.warnings]
        event(logging.INFO, "view of the data directory", view=view_id, held_back_ms=round(pause_ms, 1))
        return View(view_id, path, int(now_s * 1000), pause_ms, [*warnings, *self._log.warnings()])

    async def _freeze(self, view_id: str, path: Path) -> float:
        """Capture the moment. Returns how long writes were held back, in ms. Raises TimeoutError, Unavailable,
        OSError."""
        async with asyncio.timeout(PAUSE_MAX_S), self._still() as began:
            freezing = self._ask("backup.freeze", ViewBody(view_id), PAUSE_MAX_S)
            await asyncio.gather(freezing, asyncio.to_thread(_copy_documents, self._data, path))
        return (time.monotonic() - began) * 1000

    @asynccontextmanager
    async def _still(self) -> AsyncIterator[float]:
        """A context in which no shard and no document changes. Yields when it began (`time.monotonic`)."""
        async with AsyncExitStack() as held:
            await held.enter_async_context(self._log.state_held())
            await held.enter_async_context(self._vectors.held())
            began = time.monotonic()
            held.enter_context(self._links.barrier.closed())
            for _ in range(DRAIN_POLLS):
                if not self._links.is_writing():
                    break
                await asyncio.sleep(DRAIN_S / DRAIN_POLLS)
            yield began

    async def _ask(self, method: str, body: ViewBody, timeout_s: float) -> Sequence[WorkerReply]:
        return await self._links.call(method, body=pack(body), timeout_s=timeout_s)


def file_of(view: View, name: str) -> Path:
    """The path of a file of the view. Raises BadData for a name outside the view, NotFound."""
    path = view.path / name
    if name.startswith("/") or ".." in Path(name).parts:
        raise BadData(f"name is {name!r}; it must be one of the view's files")
    if not path.is_file():
        raise NotFound(f"the view has no file {name!r}")
    return path


def _begin(path: Path, identity: Manifest) -> None:
    """Make the view's directory, with the manifest and its copy. Raises OSError."""
    os.makedirs(path, mode=DIRECTORY_MODE)
    for manifest in (path / "manifest.json", copy_of(path / "manifest.json")):
        manifest.parent.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        manifest.write_bytes(identity.encode())
    for directory, _ in DOCUMENTS:
        (path / directory).mkdir(mode=DIRECTORY_MODE, exist_ok=True)


def _copy_documents(data: Path, path: Path) -> None:
    for directory, pattern in DOCUMENTS:
        for document in (data / directory).glob(pattern):
            (path / directory / document.name).write_bytes(document.read_bytes())


def _keep(view: Path, target: Path) -> None:
    """Sync everything in the view and give it its final name. Raises OSError."""
    sync_tree(view)
    make_directory(target.parent)
    os.rename(view, target)
    sync_directory(target.parent)


def view_name(now_s: float) -> str:
    """A new name in the form of Prometheus's snapshots. Names sort by time, also within a second."""
    fraction = int(now_s % 1 * 0x1000)
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now_s)) + f"-{fraction:03x}" + secrets.token_hex(8)[3:]
