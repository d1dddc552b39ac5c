"""What goes wrong: processes die and freeze, messages are late and lost, disks are full, the power goes."""

from __future__ import annotations

from collections import Counter

from tests.simulation.cluster import Cluster
from tests.simulation.disk import Disk
from tests.simulation.model import Model

FAULTS = (
    "kill worker",
    "kill coordinator",
    "freeze worker",
    "freeze coordinator",
    "hold requests",
    "hold replies",
    "lose messages",
    "fill disk",
    "fill coordinator's disk",
    "fail fsync",
    "slow fsync",
    "stop worker",
    "stop coordinator",
    "lose power",
    "turn clock back",
)
DURATIONS_S = (0.05, 0.3, 1.0, 3.0)
LOSSES_OF_256 = 60
SLOW_S = 0.2


class Nemesis:
    """Strikes some times, with some of the faults, at any moment of the first seconds."""

    def __init__(self, cluster: Cluster, model: Model, span_s: float, strikes_max: int) -> None:
        self._cluster = cluster
        self._model = model
        self.struck: Counter[str] = Counter()
        world = cluster.world
        choices = world.choices
        strikes = choices.below(strikes_max + 1)
        faults = [choices.pick(FAULTS) for _ in range(1 + choices.below(3))] if strikes else []
        for _ in range(strikes):
            world.at(world.now + span_s * choices.below(256) / 256, world.outside, self.strike, choices.pick(faults))
        self._over = False

    def end(self) -> None:
        self._over = True

    def lose_power(self) -> None:
        self._model.lose_power()
        self._cluster.lose_power()

    def lose_state(self) -> None:
        """The coordinator dies, and its file is not there when it starts again."""
        self._model.lose_state()
        self._cluster.kill_coordinator()
        self._cluster.files.lose()

    def strike(self, fault: str) -> None:
        if self._over:
            return
        cluster, world = self._cluster, self._cluster.world
        choices = world.choices
        number = choices.below(len(cluster.workers))
        worker = cluster.workers[number]
        duration_s = choices.pick(DURATIONS_S)
        self.struck[fault] += 1
        world.trace(f"✗ {fault} (worker-{number}, {duration_s} s)")
        match fault:
            case "kill worker":
                cluster.kill_worker(worker)
            case "kill coordinator":
                cluster.kill_coordinator()
            case "stop worker":
                cluster.stop_worker(worker)
            case "stop coordinator":
                cluster.stop_coordinator()
            case "lose power":
                self.lose_power()
            case "turn clock back":
                world.wall_offset_s -= 2 * duration_s
            case "freeze worker" if worker is not None:
                worker.process.frozen_until = world.now + duration_s
            case "freeze coordinator" if cluster.coordinator is not None:
                cluster.coordinator.process.frozen_until = world.now + duration_s
            case "hold requests" | "hold replies":
                direction = fault.removeprefix("hold ").removesuffix("s").replace("replie", "reply")
                cluster.network.held_until[f"worker-{number}", direction] = world.now + duration_s
            case "lose messages":
                cluster.network.lossy = LOSSES_OF_256
                world.after(duration_s, world.outside, self._lose_no_more)
            case "fill disk" | "fail fsync" | "slow fsync":
                self._spoil(cluster.disks[number], fault, duration_s)
            case "fill coordinator's disk":
                self._spoil(cluster.files, "fill disk", duration_s)

    def _lose_no_more(self) -> None:
        self._cluster.network.lossy = 0

    def _spoil(self, disk: Disk, fault: str, duration_s: float) -> None:
        disk.full |= fault == "fill disk"
        disk.sync_fails |= fault == "fail fsync"
        disk.sync_s = SLOW_S if fault == "slow fsync" else disk.sync_s

        def mend() -> None:
            disk.full = disk.sync_fails = False
            disk.sync_s = 0.0

        self._cluster.world.after(duration_s, self._cluster.world.outside, mend)
