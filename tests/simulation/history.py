"""One history: a cluster, clients and faults from a string of choices, and whether the log kept its promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from coordinator.log.area import LogArea
from coordinator.log.reads import KeySelection
from shared.errors import Overloaded, Unavailable
from shared.hashing import shard_of
from shared.messages.log import SEQUENCE_MAX
from shared.settings import Settings
from tests.simulation.choices import Choices
from tests.simulation.clients import LONG_S, Clients
from tests.simulation.cluster import Cluster, Disconnected, Refused
from tests.simulation.model import Model, Row
from tests.simulation.nemesis import Nemesis
from tests.simulation.patches import BOUNDS, set_bounds
from tests.simulation.plans import Plans
from tests.simulation.world import Violation, World

SPAN_S = 1.5
"""Faults come within this time."""
STRIKES_MAX = 5
PLANNED_OF_256 = 144
"""How many histories have a plan, and few other faults and clients."""
BEGUN_S = 5.0
CLIENTS_END_S = 90.0
"""By then every client has got an answer, whatever happened."""
RECOVERY_S = 60.0
"""After the last fault, by then everything works again."""
OTHER_READS_OF_256 = 48
LIVELY_END_OF_256 = 80
"""How often messages and threads are late still when faults are over."""
EVERYTHING = KeySelection(None, b"")
RETRY_S = 0.05
SHARDS, WORKERS = (2, 3, 4), (2, 1, 3)


@dataclass
class Outcome:
    """`violation`: "" when every promise was kept."""

    violation: str
    faults: Counter[str] = field(default_factory=Counter)
    events: int = 0
    batches: int = 0
    acknowledged: int = 0
    trace: list[str] = field(default_factory=list)
    used: int = 0


def run(octets: bytes, *, tracing: bool = False) -> Outcome:
    """The history of these choices; within `patches.simulated`."""
    history = History(octets, tracing)
    try:
        history.run()
    except Violation as violation:
        history.world.fail(str(violation))
    return history.outcome()


class History:
    def __init__(self, octets: bytes, tracing: bool) -> None:
        choices = Choices(octets)
        self.world = World(choices, tracing=tracing)
        shards, workers = choices.pick(SHARDS), choices.pick(WORKERS)
        set_bounds(choices.pick(BOUNDS))
        settings = Settings(
            shards=shards,
            write_timeout_ms=1000,
            query_timeout_ms=2000,
            log_visibility=choices.pick(("memory", "memory", "durable")),
            log_segment_bytes=1024,
        )
        if choices.chance(64):
            object.__setattr__(settings, "log_segment_bytes", 60)
            if choices.chance(128):
                object.__setattr__(settings, "log_retention_bytes", 120)
        self.cluster = Cluster(self.world, settings, min(workers, shards))
        self.model = Model()
        self.clients = Clients(self.cluster, self.model, _keys(shards), visibility=settings.log_visibility)
        self._begin()
        is_planned = choices.chance(PLANNED_OF_256)
        self.nemesis = Nemesis(self.cluster, self.model, SPAN_S, 1 if is_planned else STRIKES_MAX)
        if is_planned:
            Plans(self.cluster, self.clients, self.nemesis).start()
        self._begin_clients(1 if is_planned else 3)

    def _begin(self) -> None:
        """Have everything started before anything goes wrong."""
        self.world.choices.calm = True
        cluster = self.cluster

        def started() -> bool:
            coordinator = cluster.coordinator
            return coordinator is not None and coordinator.ready and coordinator.area.recovery.complete.is_set()

        if not self.world.run(started, BEGUN_S):
            self.world.fail("the cluster does not start")
        self.world.choices.calm = False

    def _begin_clients(self, batches_max: int) -> None:
        choices, clients = self.world.choices, self.clients
        for number in range(1 + choices.chance(64)):
            clients.start(f"writer-{number}", clients.appender, f"writer-{number}", 1 + choices.below(batches_max))
        for number in range(choices.below(batches_max)):
            name = f"producer-{number}"
            clients.start(name, clients.appender, name, 1 + choices.below(2), name)
        for number in range(choices.below(2)):
            clients.start(f"reader-{number}", clients.scanner, f"reader-{number}", 1 + choices.below(4))
        if choices.chance(80):
            clients.start("follower", clients.follower, "follower", 1 + choices.below(4))
        if choices.chance(80):
            clients.start("deleter", clients.deleter, "deleter", 1 + choices.below(3))
        if choices.chance(40):
            clients.start("watcher", clients.watcher, "watcher", 3)

    def run(self) -> None:
        world = self.world
        done = world.run(lambda: self.clients.running == 0 and world.now > SPAN_S, CLIENTS_END_S)
        if not done:
            world.fail(f"{self.clients.running} clients wait still after {CLIENTS_END_S:g} s")
        loses_power = world.choices.chance(100)
        compares = world.choices.chance(OTHER_READS_OF_256)
        self._heal()
        self._verify(1, compares)
        if world.violation is None and loses_power:
            # What has been read now is there for good.
            self.cluster.lose_power()
            self._verify(2, False)

    def _heal(self) -> None:
        self.world.trace("— nothing fails from now on —")
        self.nemesis.end()
        self.cluster.heal()
        self.world.choices.calm = not self.world.choices.chance(LIVELY_END_OF_256)

    def _verify(self, time: int, compares: bool) -> None:
        if self.world.violation is not None:
            return
        self.clients.start("verifier", self._verifier, time, compares)
        if not self.world.run(lambda: self.clients.running == 0, self.world.now + RECOVERY_S):
            self.world.fail(f"the log does not work again {RECOVERY_S:g} s after the last fault")

    def _verifier(self, time: int, compares: bool) -> None:
        """The last client: retries what has no answer, appends, waits for the disk, and reads everything."""
        clients, model = self.clients, self.model
        if time == 1:
            for batch in clients.unanswered():
                while not clients.attempt("verifier", batch, True):
                    self.world.sleep(RETRY_S)
        last = model.new_batch(clients.keys)
        while not clients.attempt("verifier", last, True):
            self.world.sleep(RETRY_S)
            last = model.new_batch(clients.keys)
        self._wait_until_settled()
        rows, log_start = self._everything(EVERYTHING)
        model.check(rows, log_start)
        if compares:
            self._compare(rows)
        if model.power_was_lost:
            model.settle(rows)

    def _compare(self, rows: list[Row]) -> None:
        """Read the same in the other ways there are."""
        while difference := self._difference(rows):
            again, log_start = self._everything(EVERYTHING)
            if again == [row for row in rows if row[0] >= log_start]:
                raise Violation(difference)
            self.model.check(again, log_start)
            rows = again  # a deletion that its client had given up took effect in between

    def _difference(self, rows: list[Row]) -> str:
        for key in self.clients.keys:
            own, log_start = self._everything(KeySelection(key))
            own = [row for row in own if row[0] >= log_start]
            if own != [row for row in rows if row[1] == key and row[0] >= log_start]:
                return f"a scan of key {key!r} gives {own}, one of everything {rows}"
        log_start, now = -1, self._ask(_log_start)
        while log_start != now:  # segments may be dropped meanwhile
            log_start = now
            counted = self._ask(lambda area: area.reader.count(EVERYTHING, 0, SEQUENCE_MAX))
            now = self._ask(_log_start)
        is_same = counted == sum(1 for row in rows if row[0] >= log_start)
        return "" if is_same else f"a count gives {counted}, a scan {len(rows)} records"

    def _wait_until_settled(self) -> None:
        give_up = self.world.now + RECOVERY_S * 3 / 4
        while lacking := self._ask(_what_is_not_settled):
            if self.world.now > give_up:
                raise Violation(lacking)
            self.world.sleep(RETRY_S)

    def _ask(self, handler: object) -> Any:
        while True:
            try:
                return self.cluster.call(handler, LONG_S)  # type: ignore[arg-type]
            except (Disconnected, Refused, Unavailable, Overloaded):
                self.world.sleep(RETRY_S)

    def _everything(self, selection: KeySelection) -> tuple[list[Row], int]:
        """All that can be read of the selection, and where the log starts."""
        while True:
            given = self.clients.scan("verifier", selection, 0, SEQUENCE_MAX, 1_000_000)
            if given is not None and given.end >= self._ask(_next):
                return given.rows, given.log_start
            self.world.sleep(RETRY_S)

    def outcome(self) -> Outcome:
        world, model = self.world, self.model
        return Outcome(
            str(world.violation or ""),
            self.nemesis.struck if hasattr(self, "nemesis") else Counter(),
            world.events,
            len(model.batches),
            sum(1 for batch in model.batches if batch.starts),
            world.trace_lines,
            world.choices.used,
        )


async def _what_is_not_settled(area: LogArea) -> str:
    if not area.recovery.complete.is_set():
        return "the recovery does not come to an end"
    if area.frontier.durable < area.sequencer.next:
        return "not all of the log comes to be on the disk"
    return "what was given up is never removed" if area.sequencer.revoked else ""


async def _next(area: LogArea) -> int:
    return area.frontier.visible


async def _log_start(area: LogArea) -> int:
    return area.sequencer.log_start


def _keys(shards: int) -> list[bytes]:
    """Two keys with one first letter and two with another; each pair on one shard and another."""
    keys: list[bytes] = []
    for letter in "ab":
        for shard in (0, 1):
            keys.append(next(k for at in range(99) if shard_of(k := f"{letter}{at}".encode(), shards) == shard))
    return keys
