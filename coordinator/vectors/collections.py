"""The collections of the whole cluster: the catalogue decides which exist, the shards follow.

A collection is dropped once the catalogue's files say so. Its vectors are removed from the ready shards at once, and
from the others when they are back, also after a restart. Ids are never reused, so a late drop cannot affect a
collection that was created again under the same name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

from coordinator.fanout.calls import FanOut
from coordinator.fanout.links import Links
from coordinator.vectors.catalogue import DEFAULT, Catalogue
from shared import wire
from shared.control import Control
from shared.errors import NotFound, Overloaded, TriptychError, Unavailable
from shared.messages.vectors import Collection, CollectionBody, CollectionsReply, ShardCollections
from shared.settings import Settings
from shared.telemetry import event

CHANGES_MAX = 64
"""The limit on queued changes of the catalogue."""
FOLLOW_S, LOST_S = 0.5, 0.05
"""Seconds between two checks for shards that have returned: usually, and while a lost catalogue needs all shards."""
STOP_S = 2.0

T = TypeVar("T")


class Collections:
    """One object for the cluster, whose list is in `control`. Everything except writing documents runs on the
    coordinator's event loop."""

    def __init__(self, settings: Settings, links: Links, control: Control) -> None:
        self._links = links
        self._timeout_s = settings.write_timeout_ms / 1000
        self._catalogue = Catalogue(control)
        self._known = asyncio.Event()
        self._turn = asyncio.Lock()
        self._changes: set[asyncio.Task[object]] = set()
        self._met: set[int] = set()  # shards whose ids are all below the catalogue's next id
        self._agreed = False  # all shards have been compared with the catalogue
        self._gone: dict[int, set[int]] = {}  # id of a dropped collection → shards that have removed it
        self._follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the catalogue. Raises ConfigError."""
        await asyncio.to_thread(self._catalogue.load)
        if self._catalogue.is_known:
            self._known.set()
        self._follower = asyncio.create_task(self._follow())

    async def stop(self) -> None:
        """Stop following the shards, and wait up to STOP_S for the changes under way."""
        if self._follower is not None:
            self._follower.cancel()
        if self._changes:
            await asyncio.wait(self._changes, timeout=STOP_S)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """A context in which the catalogue does not change."""
        async with self._turn:
            yield

    # Reading

    async def known(self) -> None:
        """Return when the list of collections is known. Raises Unavailable when that needs shards that are missing, or
        takes too long."""
        if self._known.is_set():
            return
        why = "the list of collections is not there, and must be made from what all shards have"
        missing = self._links.unready()
        if missing:
            raise Unavailable(f"{why}; missing: {', '.join(f'shard {n}: {text}' for n, text in missing.items())}")
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._known.wait()
        except TimeoutError:
            raise Unavailable(f"{why}; that has taken longer than {self._timeout_s:g} s") from None

    def all(self) -> list[Collection]:
        return self._catalogue.all()

    def find(self, name: str) -> Collection | None:
        """The collection `name`: None for the default one while it has no vector. Raises NotFound for others that do
        not exist."""
        if name in ("", DEFAULT):
            return self._catalogue.find(name)
        collection = self._catalogue.find(name)
        if collection is None:
            raise NotFound("; ".join([f"there is no collection {name!r}", *self._catalogue.warnings()]))
        return collection

    def at_hand(self, name: str) -> Collection | None:
        """As `find`, but None for any collection that does not exist, and while the list of collections is not
        known."""
        return self._catalogue.find(name) if self._known.is_set() else None

    def warnings(self) -> list[str]:
        """Texts about what the list of collections may lack."""
        return self._catalogue.warnings()

    # Changing

    async def create(self, wanted: Collection) -> Collection:
        """See `Catalogue.create`; durable when this returns. Raises BadData, Unavailable."""
        await self.known()
        return await self._change(partial(self._catalogue.create, wanted))

    async def find_or_create(self, wanted: Collection) -> Collection:
        """As `create`, but returns an existing collection whatever its settings are."""
        catalogue = self._catalogue
        return await self._change(lambda: catalogue.find(wanted.name) or catalogue.create(wanted))

    async def drop(self, name: str) -> list[str]:
        """Delete a collection: durably deleted when this returns, even if shards are missing. Returns a text for each
        shard that still has its vectors; such a shard drops them when it is back.

        Raises NotFound, or Unavailable when the catalogue could not be written; the collection then still exists,
        unless the error says that the change is still under way.
        """
        await self.known()
        dropped_collection = await self._change(partial(self._catalogue.remove, name))
        missing = await self._drop_from_shards(dropped_collection)
        return [f"shard {n} drops its vectors of {name!r} when it is back: {why}" for n, why in sorted(missing.items())]

    async def settle(self) -> None:
        """Return when the catalogue's files match its memory, which only a failed write puts in doubt. Raises
        Overloaded, Unavailable."""
        if self._catalogue.in_doubt:
            await self._change(self._catalogue.settle)

    async def _change(self, change: Callable[[], T]) -> T:
        """Run one change after the other, each to its end even if its caller is cancelled: two concurrent changes could
        make memory and disk differ. Raises Overloaded, Unavailable."""
        if len(self._changes) >= CHANGES_MAX:
            text = f"{CHANGES_MAX} changes of collections are waiting, which is the limit; try again later"
            raise Overloaded(text).because("collection_changes")
        task = asyncio.create_task(self._in_turn(change))
        self._changes.add(task)
        task.add_done_callback(self._changed)
        await asyncio.wait([task], timeout=self._timeout_s)  # does not cancel the task when this call is cancelled
        if not task.done():
            raise Unavailable(f"the change has taken longer than {self._timeout_s:g} s and is still under way")
        return task.result()

    def _changed(self, task: asyncio.Task[object]) -> None:
        self._changes.discard(task)
        if not task.cancelled():
            task.exception()  # marks the error as retrieved; a caller that still waits gets it too

    async def _in_turn(self, change: Callable[[], T]) -> T:
        async with self._turn:
            try:
                return await asyncio.to_thread(change)
            except OSError as error:
                raise Unavailable(f"the list of collections could not be written: {error}") from error

    # Following

    async def _follow(self) -> None:
        complaint = ""
        while True:
            try:
                await self._reconcile()
            except TriptychError as error:
                if str(error) != complaint:
                    complaint = str(error)
                    event(logging.WARNING, "collections cannot be reconciled yet", why=complaint)
            except Exception:
                event(logging.ERROR, "reconciling collections failed", trace=True)
            await asyncio.sleep(FOLLOW_S if self._known.is_set() else LOST_S)

    async def _reconcile(self) -> None:
        """Rebuild a lost catalogue, compare shards that are back with it, and have them drop what it has dropped."""
        ready = set(range(self._links.shards)) - self._links.unready().keys()
        if not self._known.is_set():
            if len(ready) < self._links.shards:
                return
            stored = await self._stored(ready)
            if len(stored) == self._links.shards:
                await self._change(lambda: self._catalogue.rebuild(stored))
                self._known.set()
            return
        if ready - self._met:
            await self._meet(await self._stored(ready - self._met))
        if not self._agreed and len(ready) == self._links.shards:
            await self._agree(ready)
        for dropped_collection in list(self._catalogue.dropped):
            if ready - self._gone.get(dropped_collection.id, set()):
                await self._drop_from_shards(dropped_collection)

    async def _stored(self, shards: set[int]) -> list[ShardCollections]:
        """What these shards hold; shards that do not answer are left out."""
        outcome = await self._ask("vector.collections", shards)
        return [
            shard for reply in outcome.replies for shard in wire.unpack(reply.message.body, CollectionsReply).shards
        ]

    async def _ask(self, method: str, shards: set[int], body: bytes = b"") -> FanOut:
        return await self._links.fan_out(method, shards=sorted(shards), body=body, timeout_s=self._timeout_s)

    async def _meet(self, shards: list[ShardCollections]) -> None:
        """Make sure that no id that one of these shards has ever seen is given again, even if the catalogue is an older
        copy."""
        seen = [number for shard in shards for number in (*shard.dropped, *(one.id for one in shard.collections))]
        if max(seen, default=0) >= self._catalogue.next_id:
            await self._change(partial(self._catalogue.give_above, max(seen)))
        self._met.update(shard.shard for shard in shards)

    async def _agree(self, ready: set[int]) -> None:
        """Resolve differences between the catalogue and the shards. They come from an older copy of either, or from a
        release that dropped a collection on some shards only. A collection that a shard has dropped is dropped
        everywhere, and a collection that the catalogue never had is added to it."""
        catalogue, generation = self._catalogue, self._catalogue.generation
        shards = await self._stored(ready)
        if len(shards) < self._links.shards:
            return
        dropped = {number for shard in shards for number in shard.dropped}
        stored = {collection.id: collection for shard in shards for collection in shard.collections}
        listed = {collection.id for collection in (*catalogue.all(), *catalogue.dropped)}
        half = [one for one in catalogue.all() if one.id in dropped]
        half += [one for number, one in stored.items() if number in dropped and number not in listed]
        strays = [one for number, one in stored.items() if number not in dropped | listed]
        for what, collections in (("was dropped in part, the rest follows", half), ("was not in the list", strays)):
            for one in collections:
                event(logging.ERROR, f"a collection {what}", collection=one.name, id=one.id)
        if half or strays:
            await self._change(partial(catalogue.reconcile, half, strays, generation))
        self._agreed = True

    async def _drop_from_shards(self, gone: Collection) -> dict[int, str]:
        """Ask the shards to drop a collection that the catalogue has dropped. Returns shard → why it has not."""
        done = self._gone.setdefault(gone.id, set())
        awaited = set(range(self._links.shards)) - done
        missing = {n: why for n, why in self._links.unready().items() if n in awaited}
        if awaited - missing.keys():
            try:
                outcome = await self._ask("vector.drop", awaited - missing.keys(), wire.pack(CollectionBody(gone)))
            except TriptychError as error:
                missing.update(dict.fromkeys(awaited - missing.keys(), str(error)))
            else:
                missing.update(outcome.missing)
                done.update(shard for reply in outcome.replies for shard in reply.shards)
        if len(done) == self._links.shards:
            if gone in self._catalogue.dropped:
                await self._change(partial(self._catalogue.confirm_dropped, gone))
            self._gone.pop(gone.id, None)
        return missing
