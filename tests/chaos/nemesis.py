"""Faults of a running cluster. Each takes a history under load and a random generator, and may leave processes dead
or frozen: the round heals them. A fault returns one line that says what it did."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable

from tests.chaos import control
from tests.chaos.control import DiskFault
from tests.chaos.history import History

Fault = Callable[[History, random.Random], str]


def _pause(chance: random.Random, least_s: float, most_s: float) -> None:
    time.sleep(chance.uniform(least_s, most_s))


def kill_worker(history: History, chance: random.Random) -> str:
    names = [f"worker-{chance.randrange(history.cluster.workers)}" for _ in range(chance.randint(1, 3))]
    for name in names:
        history.cluster.strike(name)
        _pause(chance, 0.3, 1.5)
    return f"killed {', '.join(names)}"


def kill_coordinator(history: History, chance: random.Random) -> str:
    for _ in range(2):
        history.cluster.strike("coordinator")
        _pause(chance, 0.0, 0.3)
        history.cluster.start_missing()
        history.cluster.wait_ready()
        _pause(chance, 0.3, 1.0)
    return "killed the coordinator twice"


def kill_everything(history: History, chance: random.Random) -> str:
    history.cluster.kill()
    history.cluster.start()
    _pause(chance, 0.2, 1.0)
    return "killed everything"


def freeze_worker(history: History, chance: random.Random) -> str:
    name, seconds = f"worker-{chance.randrange(history.cluster.workers)}", chance.choice((0.8, 1.5, 2.5, 4.5))
    with history.cluster.frozen(name):
        time.sleep(seconds)
    _pause(chance, 0.5, 1.5)
    return f"froze {name} for {seconds:g} s"


def freeze_coordinator(history: History, chance: random.Random) -> str:
    seconds = chance.choice((0.8, 2.5, 4.5))
    with history.cluster.frozen("coordinator"):
        time.sleep(seconds)
    _pause(chance, 0.5, 1.5)
    return f"froze the coordinator for {seconds:g} s"


def freeze_then_kill(history: History, chance: random.Random) -> str:
    """A worker is frozen with messages in its socket, then it and the coordinator die."""
    frozen = f"worker-{chance.randrange(history.cluster.workers)}"
    victims = chance.choice((["coordinator"], [frozen], ["coordinator", frozen]))
    with history.cluster.frozen(frozen):
        _pause(chance, 0.2, 2.2)
        for victim in victims:
            history.cluster.strike(victim)
        _pause(chance, 0.0, 0.5)
        if "coordinator" in victims:
            history.cluster.start_missing()
    _pause(chance, 0.5, 1.5)
    return f"froze {frozen}, killed {', '.join(victims)}"


def fill_disk(history: History, chance: random.Random) -> str:
    """The data directory is a small file system of its own (see `scenarios`)."""
    ballast = history.cluster.data / "ballast"
    with open(ballast, "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    size = ballast.stat().st_size
    _pause(chance, 2.0, 4.0)
    if chance.random() < 0.5:
        history.cluster.kill()
        history.cluster.start_workers()
        history.cluster.start_coordinator()
        _pause(chance, 0.5, 2.0)
    os.unlink(ballast)
    return f"filled the disk with {size >> 20} MB"


def _disk(
    operations: int, numbers: tuple[int, ...], permille: tuple[int, ...], delay_ms: tuple[int, ...] = (0,)
) -> Fault:
    def fault(history: History, chance: random.Random) -> str:
        chosen = DiskFault(
            operations,
            error=chance.choice(numbers),
            permille=chance.choice(permille),
            delay_ms=chance.choice(delay_ms),
            path=chance.choice(("", "/wal/", "/shards/", "/store/", "/sequencer", "/vector")),
        )
        history.cluster.control.disk(chosen, chance.getrandbits(32))
        _pause(chance, 1.5, 3.5)
        if chance.random() < 0.4:
            history.cluster.strike(chance.choice(("worker-0", "coordinator")))
            _pause(chance, 0.1, 0.5)
        history.cluster.control.clear()
        return f"{chosen}, {history.cluster.control.hits} hits"

    return fault


no_space = _disk(control.WRITE | control.TRUNCATE, (errno.ENOSPC,), (300, 1000))
write_error = _disk(control.WRITE | control.RENAME, (errno.EIO,), (50, 1000))
sync_error = _disk(control.SYNC, (errno.EIO, errno.ENOSPC), (50, 300, 1000))
slow_sync = _disk(control.SYNC, (0,), (0,), (50, 400, 1500))


def torn_write(history: History, chance: random.Random) -> str:
    return _die_at(control.WRITE, control.KILL_HALF_WRITTEN, history, chance)


def death_at_sync(history: History, chance: random.Random) -> str:
    operation = chance.choice((control.SYNC, control.RENAME))
    return _die_at(operation, chance.choice((control.KILL_BEFORE, control.KILL_AFTER)), history, chance)


def _die_at(operation: int, when: int, history: History, chance: random.Random) -> str:
    """A process dies in the middle of a call; then everything else does."""
    path = chance.choice(("", "/wal/", "/store/", "/blocks/", "/sequencer", "/vector"))
    fault = DiskFault(operation, kill_when=when, countdown=chance.randint(1, 12), path=path)
    history.cluster.control.disk(fault, chance.getrandbits(32))
    _pause(chance, 0.5, 2.0)
    history.cluster.control.clear()
    if chance.random() < 0.5:
        history.cluster.kill()
        history.cluster.start()
    _pause(chance, 0.2, 0.8)
    return str(fault)


def lose_messages(history: History, chance: random.Random) -> str:
    drop, hold, hold_ms = chance.choice(((30, 0, 0), (0, 300, 1500), (20, 100, 4000), (200, 0, 0)))
    history.cluster.control.messages(drop, hold, hold_ms)
    _pause(chance, 3.0, 5.0)
    if chance.random() < 0.3:
        history.cluster.strike(chance.choice(("worker-0", "coordinator")))
        history.cluster.start_missing()
    history.cluster.control.clear()
    _pause(chance, 0.5, 1.5)
    return f"of 1,000 messages {drop} lost, {hold} up to {hold_ms} ms late; {history.cluster.control.hits} hits"


def move_clock(history: History, chance: random.Random) -> str:
    jumps = [chance.choice((-86400 * 3, -3600, 3600, 86400 * 40, 60, -60)) for _ in range(2)]
    for jump in jumps:
        history.cluster.move_clock(jump)
        _pause(chance, 1.5, 2.5)
        if chance.random() < 0.3:
            history.cluster.kill()
            history.cluster.start()
    return f"the clock went {', '.join(f'{jump:+d} s' for jump in jumps)}"


def change_workers(history: History, chance: random.Random) -> str:
    counts = []
    for _ in range(2):
        if chance.random() < 0.5:
            history.cluster.kill()
        else:
            history.cluster.stop()
        history.cluster.workers = chance.choice([n for n in (1, 2, 3, 4) if n != history.cluster.workers])
        counts.append(history.cluster.workers)
        history.cluster.start()
        _pause(chance, 0.5, 1.2)
    return f"workers: {counts}"


def impatience_only(history: History, chance: random.Random) -> str:
    """Nothing but clients that leave in the middle of a request."""
    _pause(chance, 4.0, 6.0)
    return "clients left before their answers"
