"""The scenarios by name. A round's plan follows from the seed, the scenario's name and the round's number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tests.chaos import damage, nemesis
from tests.chaos.nemesis import Fault
from tests.chaos.processes import FAKETIME
from tests.chaos.rounds import Hurt, Outcome, Workshop, can_mount, damage_round, live_round, skewed_round

Scenario = Callable[[Workshop, str, random.Random], Outcome]
SMALL_DISK_MB = 160

MINUTE = (
    "kill-worker",
    "freeze-then-kill",
    "lost-messages",
    "sync-error",
    "torn-write",
    "flip-wal-record",
    "flip-store-sst",
    "flip-block",
)
"""Of different kinds, for those who have a minute."""

_FLIPPED = tuple(damage.KINDS)
_CUT = tuple(name for name in damage.KINDS if name not in ("wal-header", "wal-tail"))
_REMOVED = (
    "manifest",
    "identity",
    "wal-workers",
    "store-sst",
    "store-current",
    "store-manifest",
    "block",
    "sequencer",
    "collections",
)


def _live(fault: Fault, **options: Any) -> Scenario:
    def run(shop: Workshop, name: str, chance: random.Random) -> Outcome:
        return live_round(shop, name, fault, chance, **options)

    return run


def _damaged(hurt: Hurt, kind: str) -> Scenario:
    def run(shop: Workshop, name: str, chance: random.Random) -> Outcome:
        return damage_round(shop, name, damage.KINDS[kind], chance, hurt)

    return run


def _mixed(history: nemesis.History, chance: random.Random) -> str:
    """Several faults, one after the other."""
    faults = [
        nemesis.kill_worker,
        nemesis.kill_coordinator,
        nemesis.freeze_worker,
        nemesis.freeze_then_kill,
        nemesis.lose_messages,
        nemesis.slow_sync,
        nemesis.sync_error,
        nemesis.no_space,
        nemesis.torn_write,
    ]
    told = []
    for fault in chance.sample(faults, 3):
        told.append(fault(history, chance))
        history.cluster.heal()
    return "; ".join(told)


def all_scenarios() -> dict[str, Scenario]:
    """Those that can be run here: another clock needs libfaketime, a small disk root."""
    found: dict[str, Scenario] = {
        "kill-worker": _live(nemesis.kill_worker),
        "kill-coordinator": _live(nemesis.kill_coordinator),
        "kill-everything": _live(nemesis.kill_everything),
        "freeze-worker": _live(nemesis.freeze_worker, impatience=0.3),
        "freeze-coordinator": _live(nemesis.freeze_coordinator, impatience=0.3),
        "freeze-then-kill": _live(nemesis.freeze_then_kill, impatience=0.3),
        "no-space": _live(nemesis.no_space),
        "write-error": _live(nemesis.write_error),
        "sync-error": _live(nemesis.sync_error),
        "slow-sync": _live(nemesis.slow_sync, impatience=0.2),
        "torn-write": _live(nemesis.torn_write),
        "death-at-sync": _live(nemesis.death_at_sync),
        "lost-messages": _live(nemesis.lose_messages),
        "workers-changed": _live(nemesis.change_workers),
        "impatient-clients": _live(nemesis.impatience_only, impatience=0.7),
        "mixed": _live(_mixed, impatience=0.2),
        "skewed-log": skewed_round,
        **{f"flip-{kind}": _damaged(damage.flip, kind) for kind in _FLIPPED},
        **{f"cut-{kind}": _damaged(damage.cut, kind) for kind in _CUT},
        **{f"gone-{kind}": _damaged(damage.remove, kind) for kind in _REMOVED},
    }
    if can_mount():
        found["disk-full"] = _live(nemesis.fill_disk, disk_megabytes=SMALL_DISK_MB)
    if FAKETIME.exists():
        found["clock"] = _live(nemesis.move_clock, clock=True)
    return found
