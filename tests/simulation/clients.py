"""Clients of a history: they append, scan, follow and count, each a thread outside of the cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coordinator.log.area import LogArea
from coordinator.log.columns import columns_of
from coordinator.log.follow import rows_of
from coordinator.log.reads import KeySelection
from coordinator.log.records import Append
from shared.errors import BadData, DeadlineExceeded, Overloaded, TriptychError, Unavailable
from shared.messages.log import SEQUENCE_MAX
from tests.simulation.cluster import Cluster, Disconnected, Refused
from tests.simulation.model import Batch, Given, Model, Row, Trim
from tests.simulation.world import Thread, Violation

LONG_S = 60.0
"""The patience of a client that waits for the log's own deadlines."""
PAGES_MAX = 400
"""More pages than any log of a history has."""
PATIENCE_S = (LONG_S, LONG_S, 0.4, 0.1, 0.02)
ATTEMPTS_MAX = 4


def keys_of(selection: KeySelection) -> Callable[[bytes], bool]:
    """Whether a key is one of the selection's."""
    if selection.key is None:
        return lambda key: key.startswith(selection.prefix)
    return lambda key: key == selection.key


@dataclass
class Clients:
    """What they share: the keys they write, and what they know."""

    cluster: Cluster
    model: Model
    keys: list[bytes]
    running: int = 0
    _producers: dict[str, list[Batch]] = field(default_factory=dict)
    visibility: str = "memory"

    def start(self, name: str, script: Callable[..., object], *args: Any) -> None:
        self.running += 1

        def run() -> None:
            script(*args)
            self.running -= 1

        Thread(run, name, process=self.cluster.world.outside).start()

    # Appending

    def appender(self, name: str, batches: int, producer: str = "") -> None:
        """Appends some batches one after another, those of a producer as often as it takes."""
        world = self.cluster.world
        choices = world.choices
        for _ in range(batches):
            world.sleep(choices.delay_s())
            keys = [choices.pick(self.keys) for _ in range(1 + choices.below(4))]
            if not producer:
                self.attempt(name, self.model.new_batch(keys), choices.chance(96), choices.pick(PATIENCE_S))
                continue
            batch = self.numbered(producer, keys)
            for attempt in range(1 + choices.below(ATTEMPTS_MAX)):
                if attempt == 0 and choices.chance(64):
                    args = name + "'", batch, choices.chance(96), choices.pick(PATIENCE_S)
                    self.start(name + "'", self.attempt, *args)  # from another connection, at the same time
                if self.attempt(name, batch, choices.chance(96), choices.pick(PATIENCE_S)):
                    break
        if producer and choices.chance(128):
            self.attempt(name, choices.pick(self._producers[producer]), True, LONG_S)

    def numbered(self, producer: str, keys: list[bytes]) -> Batch:
        """The producer's next batch."""
        batches = self._producers.setdefault(producer, [])
        batches.append(self.model.new_batch(keys, producer, len(batches)))
        return batches[-1]

    def attempt(self, name: str, batch: Batch, durable: bool, patience_s: float = LONG_S) -> bool:
        """Send the batch once; whether nothing is left to be done about it."""
        world = self.cluster.world
        keys, values = [key for key, _ in batch.records], [value for _, value in batch.records]
        log_start = 0
        was_lost_before = False

        async def handler(area: LogArea) -> tuple[int, int]:
            nonlocal log_start, was_lost_before
            was_lost_before = batch.may_be_lost
            try:
                return await area.append(Append(columns_of(keys, values), durable, batch.producer, batch.seq))
            finally:
                log_start = area.sequencer.log_start

        world.trace(f"{name}: append {batch} {'durable' if durable else ''} {[k.decode() for k in keys]}")
        batch.attempts += 1
        try:
            start, count = self.cluster.call(handler, patience_s)
        except (Disconnected, DeadlineExceeded) as error:
            world.trace(f"{name}: {batch}: not known: {error}")
            self.model.came_to_unknown_end(batch, was_lost_before)
            return False
        except (Refused, Unavailable, Overloaded) as error:
            world.trace(f"{name}: {batch}: refused: {error}")
            world.reached("refused")
            return False
        except BadData as error:
            world.trace(f"{name}: {batch}: {error}")
            self.model.log_start = max(self.model.log_start, log_start)
            self._check_refusal(batch)
            return True
        except TriptychError as error:
            raise Violation(f"{name}: {batch} was answered {error!r}") from None
        world.trace(f"{name}: {batch} is acknowledged at {start}")
        world.reached("acknowledged")
        self.model.log_start = max(self.model.log_start, log_start)
        self.model.acknowledged(batch, start, count, durable)
        return True

    def _check_refusal(self, batch: Batch) -> None:
        """A number below the producer's last is refused, unless it has been answered (and not been dropped since)."""
        later = [other for other in self._producers.get(batch.producer, []) if other.seq > batch.seq and other.attempts]
        if batch.starts and batch.starts[0] >= self.model.log_start and not batch.may_be_lost:
            raise Violation(f"{batch} was acknowledged before, and is refused when it comes again")
        if not later:
            raise Violation(f"{batch} is refused as too old, and no later one has been sent")

    def deleter(self, name: str, deletions: int) -> None:
        """Deletes what some keys have, or the beginning of it."""
        world = self.cluster.world
        choices = world.choices
        for _ in range(deletions):
            world.sleep(choices.delay_s())
            self.delete(name, choices.pick(self.keys), choices.chance(160), choices.pick(PATIENCE_S))

    def delete(self, name: str, key: bytes, is_whole: bool, patience_s: float = LONG_S) -> bool:
        """Delete the key's records, or about half of them; whether it was answered."""
        world = self.cluster.world
        trim = Trim(key, 0)
        self.model.trims.append(trim)

        async def handler(area: LogArea) -> int:
            before = area.frontier.readable if is_whole else area.frontier.readable // 2
            trim.before = before
            return (await area.trims.trim(key, before)).start

        world.trace(f"{name}: delete {key!r}")
        try:
            start = self.cluster.call(handler, patience_s)
        except (Disconnected, DeadlineExceeded, Refused, Unavailable, Overloaded) as error:
            world.trace(f"{name}: deletion of {key!r} below {trim.before}: not known: {error!r}")
            return False
        if start != trim.before:
            raise Violation(f"{name}: deletes {key!r} below {trim.before} and is told {start}")
        world.trace(f"{name}: {key!r} is deleted below {start}")
        world.reached("deleted")
        trim.is_done = True
        return True

    def unanswered(self) -> list[Batch]:
        """The last batch of each producer, and all that were never acknowledged."""
        return [b for seqs in self._producers.values() for b in seqs if not b.starts or b is seqs[-1]]

    # Reading

    def selection(self) -> KeySelection:
        choices = self.cluster.world.choices
        kind = choices.below(3)
        if kind == 0:
            return KeySelection(None, b"")
        key = choices.pick(self.keys)
        return KeySelection(None, key[:1]) if kind == 1 else KeySelection(key)

    def scanner(self, name: str, scans: int) -> None:
        world = self.cluster.world
        choices = world.choices
        position = 0
        for _ in range(scans):
            world.sleep(choices.delay_s())
            selection = self.selection()
            what = choices.below(4)
            if what == 3:
                self.count(name, selection)
                continue
            start = position if choices.chance(128) else 0
            reverse = what == 2 and selection.key is not None
            limit = choices.pick((1_000_000, 1, 3, 7))
            given = self.scan(name, selection, start, SEQUENCE_MAX, limit, reverse)
            if given is not None and not reverse and selection == KeySelection(None, b""):
                position = max(position, given.end)

    def scan(
        self, name: str, selection: KeySelection, start: int, end: int, limit: int, reverse: bool = False
    ) -> Given | None:
        """Read pages as the endpoint does, until the limit or the end; None when there is nothing to be known."""
        world = self.cluster.world
        given = Given(name, keys_of(selection), start, start, [], 0, self.model.gone)
        reached = end

        async def handler(area: LogArea) -> None:
            nonlocal reached
            pages = area.reader.pages(selection, start, end, limit, reverse)
            count = 0
            try:
                async for page in pages:
                    count += 1
                    if count > PAGES_MAX:
                        raise Violation(f"{name} has {count} pages of {selection} from {start} on, and no end")
                    rows = list(rows_of(page.records, selection))
                    if not reverse and not page.done and page.next <= given.end:
                        raise Violation(
                            f"{name}: a page of {selection} from {given.end} on has {len(rows)} records and is to be "
                            f"followed by one from {page.next} on"
                        )
                    given.rows += rows
                    if reverse:
                        reached = page.next
                    else:
                        given.end = page.next
            finally:
                # As the answer says it, at its end: below, segments have been dropped meanwhile.
                given.log_start = area.sequencer.log_start
                await pages.aclose()

        complete = True
        try:
            self.cluster.call(handler, world.choices.pick(PATIENCE_S))
        except (Disconnected, Refused, Unavailable, Overloaded) as error:
            world.trace(f"{name}: scan of {selection} from {start} ends at {given.end}: {error}")
            complete = False
        if reverse:
            if not complete:
                return None
            given.rows.reverse()
            given.start, given.end = max(reached, start), (given.rows[-1][0] + 1) if given.rows else max(reached, start)
        if world.tracing:
            numbers = [number for number, _, _, _ in given.rows]
            world.trace(f"{name}: scan of {selection} from {given.start} to {given.end}: {numbers}")
        self.model.saw(given)
        return given

    def count(self, name: str, selection: KeySelection) -> None:
        world = self.cluster.world

        async def handler(area: LogArea) -> tuple[int, int, int]:
            # Before the shards have reported, it is not known yet what of an earlier life may be read.
            await area.recovery.wait_for(area.reader._shards(selection))
            end, log_start = area.frontier.visible, area.sequencer.log_start
            return await area.reader.count(selection, 0, end), end, log_start

        try:
            counted, end, log_start = self.cluster.call(handler, LONG_S)
        except (Disconnected, Refused, Unavailable, Overloaded):
            return
        world.trace(f"{name}: counts {counted} of {selection} below {end}")
        self.model.counts.append((name, keys_of(selection), 0, end, counted, log_start))

    def follower(self, name: str, reads: int, selection: KeySelection | None = None) -> None:
        """Reads on from where it is as an event stream does, and connects again when it is cut off."""
        world = self.cluster.world
        selection = selection or self.selection()
        position = 0
        for _ in range(reads):
            world.sleep(world.choices.delay_s())
            given = Given(name, keys_of(selection), position, position, [], 0, self.model.gone)

            async def handler(area: LogArea, given: Given = given) -> None:
                with area.followers.following(selection, given.start) as follower:
                    async with asyncio.timeout(1.0):
                        for _ in range(4):
                            rows: list[Row] = await area.followers.read(follower, 5)
                            given.rows += rows
                            given.end = follower.position
                            given.log_start = area.sequencer.log_start

            try:
                self.cluster.call(handler, world.choices.pick(PATIENCE_S))
            except (Disconnected, Refused, Unavailable, Overloaded, TimeoutError) as error:
                world.trace(f"{name}: cut off: {error!r}")
            world.trace(f"{name}: follows {selection} from {position} to {given.end}: {[r[0] for r in given.rows]}")
            self.model.saw(given)
            position = given.end

    def watcher(self, name: str, looks: int) -> None:
        """Asks how far the log is on disk, and remembers what had been acknowledged by then."""
        world = self.cluster.world
        for _ in range(looks):
            world.sleep(world.choices.delay_s() + 0.05)

            async def handler(area: LogArea) -> tuple[int, int]:
                return min(area.frontier.durable, area.frontier.visible), area.sequencer.log_start

            try:
                durable, log_start = self.cluster.call(handler, LONG_S)
            except (Disconnected, Refused):
                continue
            self.model.synced_upto = max(self.model.synced_upto, durable)
            self.model.log_start = max(self.model.log_start, log_start)
            world.trace(f"{name}: everything below {durable} is on the disk")
