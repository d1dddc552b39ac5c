"""A shard's store: batches durable, written only, and not logged but flushed."""

from __future__ import annotations

import random
from pathlib import Path

from tests.powerloss.history import History, require
from tests.powerloss.recording import Recorder
from worker.storage.rows.store import Store

STEPS = 60
FAMILIES = ("meta", "series")


def killed(store: Store) -> None:
    """As if its process had died: nothing is flushed."""
    store._families.clear()
    store._handles.clear()
    store._db.close()


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    store = Store(root / "store")
    recorder.settled()
    unlogged = 0
    for number in range(STEPS):
        how = chance.random()
        if how < 0.7:
            batch = store.batch()
            for family in FAMILIES:
                batch.put(family, b"%08d" % number, chance.randbytes(chance.choice((10, 3000))))
            durable = how < 0.3
            recorder.act(["batch", number, durable], lambda: store.write(batch, durable=durable))  # noqa: B023
        elif how < 0.8:
            recorder.act(["sync"], store.sync)
        elif how < 0.88:
            batch = store.batch()
            batch.put("log", b"%08d" % unlogged, bytes(100))
            recorder.act(["unlogged", unlogged], lambda: store.write(batch, logged=False))  # noqa: B023
            unlogged += 1
        elif how < 0.95:
            recorder.act(["flush", unlogged], lambda: store.flush("log"))  # noqa: B023
        else:
            store.sync()
            store.flush("log")
            recorder.begin(["sync"])(None)
            recorder.begin(["flush", unlogged])(None)
            if chance.random() < 0.5:
                store.close()
            else:
                killed(store)
            store = Store(root / "store")
    store.close()


def check(root: Path, history: History) -> None:
    """Batches are whole; those that were durable are there, of the others the first ones."""
    store = Store(root / "store")
    there = [[int(key) for key in store.keys(family)] for family in FAMILIES]
    flushed = [int(key) for key in store.keys("log")]
    killed(store)
    require(there[0] == there[1], f"half of batches: {sorted(set(there[0]) ^ set(there[1]))}")
    tried: list[int] = []
    needed = unlogged = unlogged_needed = 0
    for act in history.acts:
        kind = act.told[0]
        if kind == "batch":
            tried.append(act.told[1])
            needed = len(tried) if act.is_done and act.told[2] else needed
        elif kind == "sync" and act.is_done:
            needed = len(tried)
        elif kind == "unlogged":
            unlogged = act.told[1] + 1
        elif kind == "flush" and act.is_done:
            unlogged_needed = act.told[1]
    require(there[0] == tried[: len(there[0])], f"not a beginning of what was written: {there[0]} of {tried}")
    require(len(there[0]) >= needed, f"lost batches {tried[len(there[0]) : needed]}")
    require(flushed == list(range(len(flushed))) and len(flushed) <= unlogged, f"unlogged rows {flushed}")
    require(len(flushed) >= unlogged_needed, f"lost flushed rows from {len(flushed)} to {unlogged_needed}")
