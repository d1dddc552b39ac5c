"""Faults that belong together: a plan waits for a point of the protocol and strikes there, with clients that look on.

A single fault at a random moment seldom meets the few milliseconds in which a promise hangs on one check. A plan goes
there: a batch that one worker has and the other has not, a revocation that the disk refuses, a message that comes after
the next coordinator has asked what there is. What it does in detail is left to the history's choices.
"""

from __future__ import annotations

from collections.abc import Callable

from coordinator.log.reads import KeySelection
from tests.simulation.clients import Clients
from tests.simulation.cluster import Cluster
from tests.simulation.disk import STATE_REFUSED
from tests.simulation.model import Batch
from tests.simulation.nemesis import FAULTS, Nemesis
from tests.simulation.processes import READY, Worker, done

APPENDED = done("log.append")
POINTS = (
    APPENDED,
    done("log.recover"),
    done("log.revoke"),
    done("log.sync"),
    "log.append",
    "log.revoke",
    "log.recover",
    "refused",
    "acknowledged",
    STATE_REFUSED,
    READY,
)
POINT_S = 0.6
"""How long a plan waits for a point before it goes on without it."""
TIMEOUT_S = 1.0
"""What an append waits for its shards."""
PATIENCE_S = 0.4


class Plans:
    """One plan of a history, on two keys: one of the first shard (`near`), one of the second (`far`)."""

    def __init__(self, cluster: Cluster, clients: Clients, nemesis: Nemesis) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._choices = cluster.world.choices
        self._clients = clients
        self._nemesis = nemesis
        self._near, self._far = clients.keys[:2]
        self._far_worker = 1 % len(cluster.workers)

    def start(self) -> None:
        name, plan = self._choices.pick(PLANS)
        self._nemesis.struck[f"plan: {name}"] += 1
        self._world.trace(f"plan: {name}")
        self._clients.start("plan", plan, self)

    # The plans

    def _chain(self) -> None:
        """Two or three faults, each at a point that may follow from the one before."""
        for _ in range(2 + self._choices.below(2)):
            for _ in range(1 + self._choices.below(3)):
                self._world.wait_for(self._choices.pick(POINTS), POINT_S)
            self._world.sleep(self._choices.delay_s())
            self._now(self._nemesis.strike, self._choices.pick(FAULTS))

    def _half_written(self) -> None:
        """The coordinator dies when one worker has its part of a batch; the other does not get its own, or reports late
        that it has it. Meanwhile clients read what the first has, repeat the batch and append to the first. Sometimes
        the coordinator dies once more."""
        choices, network = self._choices, self._cluster.network
        far = f"worker-{self._far_worker}", "request"
        is_held = choices.byte() < 192
        if is_held:
            network.held_until[far] = self._world.now + choices.pick((0.2, 0.4, 0.7, 3.0))
        batch = self._send_batch()
        self._world.wait_for(APPENDED, POINT_S)
        if not is_held:
            self._world.wait_for(APPENDED, 0.02)
        self._world.sleep(choices.delay_s())
        self._slow_down_far_worker()
        self._kill_coordinator()
        network.held_until.pop(far, None)
        self._begin_looking_on(batch)
        if choices.chance(160):
            self._wait_until_ready()
            for _ in range(1 + choices.below(3)):
                self._append("again", [self._near])
                self._world.sleep(choices.delay_s() + choices.pick((0.05, 0.0, 0.1)))
            if choices.chance(128):
                self._kill_coordinator()

    def _late_report(self) -> None:
        """The coordinator dies when both workers have their parts of a batch; one of them reports late, under clients
        that follow the key, and more is appended to it."""
        choices = self._choices
        batch = self._send_batch()
        self._world.wait_for(APPENDED, POINT_S)
        self._world.wait_for(APPENDED, 0.02)
        silent_s = choices.pick((0.4, 0.2, 0.8))
        self._cluster.network.held_until[f"worker-{self._far_worker}", "reply"] = self._world.now + silent_s
        self._kill_coordinator()
        selection = choices.pick((KeySelection(self._near), KeySelection(None, self._near[:1])))
        for number in range(1 + choices.below(2)):
            self._clients.start(f"follow-{number}", self._follow, selection)
        self._begin_looking_on(batch)
        for _ in range(2 + choices.below(2)):
            self._wait_until_ready()
            self._world.sleep(choices.pick((0.15, 0.3, 0.02)) + choices.delay_s())
            self._append("again", [self._near])

    def _late_append(self) -> None:
        """A worker stands still with an append in its hands, until it has been given up."""
        choices, network = self._choices, self._cluster.network
        worker = self._worker()
        if worker is None:
            return
        has_short_stall = choices.chance(160)
        if has_short_stall:
            worker.stalled["log.append"] = choices.pick((0.2, 0.4, 0.7, 0.1))
        else:
            # Its time runs from when the worker has it, unless both are on one host.
            network.held_until[worker.name, "request"] = self._world.now + 0.5
            worker.stalled["log.append"] = 0.9
            network.dropped.add((worker.name, "cancel"))
        batch = self._send_batch()
        self._world.wait_for("log.append", POINT_S)
        self._world.sleep(choices.delay_s())
        if has_short_stall:
            self._kill_coordinator()
        self._begin_looking_on(batch)

    def _refused_on_full_disk(self) -> None:
        """A batch that both workers have is to be taken back, the coordinator's disk refuses to remember that, and the
        coordinator dies before a worker hears of it."""
        choices, files, network = self._choices, self._cluster.files, self._cluster.network
        unheard = {(f"worker-{number}", "log.revoke") for number in range(len(self._cluster.workers))}
        network.dropped |= unheard
        batch = self._send_batch()
        self._world.wait_for("log.append", POINT_S)
        files.full = True  # only now: the first batch of a log begins a segment, which is written down
        network.held_until[f"worker-{self._far_worker}", "reply"] = self._world.now + TIMEOUT_S + 0.3
        self._world.wait_for(STATE_REFUSED, TIMEOUT_S + POINT_S)
        self._world.wait_for("refused", choices.pick((0.05, 0.01, 0.3)))
        self._kill_coordinator()
        network.dropped -= unheard
        self._world.sleep(choices.pick((0.0, 0.05, 0.3)))
        files.full = False
        self._begin_looking_on(batch)

    def _failed_sync(self) -> None:
        """A worker cannot sync what nobody waits for, clients ask what is on disk, and the power goes."""
        choices = self._choices
        disk = self._cluster.disks[self._far_worker]
        how = choices.below(3)
        disk.sync_fails = how < 2
        disk.sync_s = 0.3 if how == 2 else 0.0
        batch = self._send_batch(durable=False)
        self._clients.start("watcher", self._clients.watcher, "watcher", 3)
        self._world.wait_for("acknowledged", POINT_S)
        if batch.producer and choices.chance(128):
            self._clients.start("repeat", self._clients.attempt, "repeat", batch, True, PATIENCE_S)
        if choices.chance(128):
            self._clients.start("other", self._append, "other", [self._near])
        self._world.sleep(choices.pick((0.15, 0.08, 0.3)) + choices.delay_s())
        self._now(self._nemesis.lose_power)
        self._world.sleep(0.0)
        disk.sync_fails, disk.sync_s = False, 0.0

    def _state_lost(self) -> None:
        """A batch is taken back that one worker keeps longer, the log goes on, and the coordinator's file is lost. The
        next coordinator, which makes it anew, may die soon as well, alone or with all workers; then more is appended
        below what readers may have been told, if the new file does not say so."""
        choices, cluster = self._choices, self._cluster
        far = f"worker-{self._far_worker}"
        disk = cluster.disks[0]
        if self._far_worker and choices.byte() < 192:
            disk.full = True
            cluster.network.dropped.add((far, "log.revoke"))
        batch = self._send_batch()
        self._world.wait_for("refused", POINT_S)
        disk.full = False
        for _ in range(2 + choices.below(3)):
            self._append("on", [self._near, self._far])
            self._world.sleep(choices.delay_s())
        if choices.chance(64):
            self._slow_down_far_worker()
        self._now(self._nemesis.lose_state)
        cluster.network.dropped.clear()
        self._begin_looking_on(batch)
        if choices.chance(96):
            self._wait_until_ready()
            self._world.sleep(choices.pick((0.15, 0.05, 0.4)))
            self._clients.scan("look", KeySelection(self._near), 0, 1 << 62, 1_000_000)
            if choices.chance(128):
                self._now(self._nemesis.lose_power)
            else:
                self._kill_coordinator()
            self._wait_until_ready()
            self._append("after", [self._near, self._far])

    def _gathered(self) -> None:
        """So much is appended that a shard gathers it, and its worker dies before the store has written it out."""
        choices, cluster = self._choices, self._cluster
        for number in range(3 + choices.below(3)):
            batch = self._clients.model.new_batch([self._near] * (2 + choices.below(3)))
            self._clients.attempt(f"fill-{number}", batch, True, PATIENCE_S)
        self._world.sleep(choices.pick((0.2, 0.1, 0.4)) + choices.delay_s())
        if choices.chance(128):
            self._now(self._nemesis.lose_power)
        elif (worker := cluster.workers[0]) is not None:
            self._now(cluster.kill_worker, worker, "killed", choices.pick((0.1, 0.5)))

    # Their parts

    def _now(self, act: Callable[..., None], *args: object) -> None:
        """Act as the scheduler does, and go on after it."""
        self._world.after(0.0, self._world.outside, act, *args)
        self._world.sleep(0.0)

    def _worker(self) -> Worker | None:
        return self._cluster.workers[self._far_worker]

    def _kill_coordinator(self) -> None:
        self._now(self._cluster.kill_coordinator)

    def _slow_down_far_worker(self) -> None:
        duration_s = self._choices.pick((1.0, 0.3, 3.0, 0.1))
        worker = self._worker()
        match self._choices.below(4):
            case 1 if worker is not None:
                worker.process.frozen_until = self._world.now + duration_s
            case 2:
                self._now(self._cluster.kill_worker, worker, "killed", duration_s)
            case 3:
                name = f"worker-{self._far_worker}"
                self._cluster.network.held_until[name, "reply"] = self._world.now + duration_s

    def _send_batch(self, durable: bool | None = None) -> Batch:
        """Send a batch for both workers, often a producer's; return at once."""
        keys = [self._near, self._far]
        if self._choices.chance(160):
            batch = self._clients.numbered("planner", keys)
        else:
            batch = self._clients.model.new_batch(keys)
        if durable is None:
            durable = self._choices.chance(96)
        self._clients.start("first", self._clients.attempt, "first", batch, durable)
        return batch

    def _append(self, name: str, keys: list[bytes]) -> None:
        self._clients.attempt(name, self._clients.model.new_batch(keys), self._choices.chance(128), PATIENCE_S)

    def _wait_until_ready(self) -> None:
        if self._cluster.coordinator is None or not self._cluster.coordinator.ready:
            self._world.wait_for(READY, POINT_S)

    def _begin_looking_on(self, batch: Batch) -> None:
        """Clients that come as soon as there is a coordinator again, and for longer than the worker is away."""
        choices, clients = self._choices, self._clients
        if batch.producer and choices.chance(192):
            clients.start("repeat", self._repeat, batch)
        key = choices.pick((self._near, self._near, self._far))
        if choices.chance(128):
            clients.start("look", self._look, KeySelection(key))
        if choices.chance(128):
            clients.start("follow", self._follow, KeySelection(key))

    def _repeat(self, batch: Batch) -> None:
        for _ in range(8):
            self._wait_until_ready()
            if self._clients.attempt("repeat", batch, self._choices.chance(96), PATIENCE_S):
                return
            self._world.sleep(self._choices.delay_s())

    def _look(self, selection: KeySelection) -> None:
        for _ in range(3):
            self._wait_until_ready()
            self._world.sleep(self._choices.delay_s())
            self._clients.scan("look", selection, 0, 1 << 62, 1_000_000)

    def _follow(self, selection: KeySelection) -> None:
        self._wait_until_ready()
        self._clients.follower("follow", 1 + self._choices.below(2), selection)


PLANS: tuple[tuple[str, Callable[[Plans], None]], ...] = (
    ("chain", Plans._chain),
    ("half written", Plans._half_written),
    ("half written", Plans._half_written),
    ("late report", Plans._late_report),
    ("late report", Plans._late_report),
    ("late append", Plans._late_append),
    ("refused on full disk", Plans._refused_on_full_disk),
    ("failed sync, no power", Plans._failed_sync),
    ("state lost", Plans._state_lost),
    ("gathered", Plans._gathered),
)
"""The first is what calm choices pick; "half written" has the most branches."""
