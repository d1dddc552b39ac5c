"""The write-ahead log: records of some streams, released, in files that are used again; a new number of workers."""

from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path
from threading import Thread

from tests.powerloss.history import History, require, some
from tests.powerloss.recording import Recorder
from worker.storage.wal import layout
from worker.storage.wal.log import LOG, SERIES, WriteAheadLog

FILE_BYTES = 16 << 10
STEPS = 120
STREAMS = 3
THREADS = 3
SIZE_MAX = 3000


def _payload(stream: int, number: int, size: int) -> bytes:
    head = b"%d:%d:%d:" % (stream, number, size)
    return head + random.Random(f"{stream}/{number}").randbytes(size)


def _told(payload: bytes) -> tuple[int, int, int]:
    stream, number, size, _ = bytes(payload[:40]).split(b":", 3)
    return int(stream), int(number), int(size)


def _log(root: Path, worker: int = 0) -> WriteAheadLog:
    return WriteAheadLog(layout.directory_of(root / "wal", worker), file_bytes=FILE_BYTES).open()


def killed(log: WriteAheadLog) -> None:
    """As if its process had died: nothing is synced, and the next one may have the directory."""
    if log._files is not None:
        log._files._look = lambda: None  # its thread has ended with it
    path = str(log._directory / "lock")
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the listing
            if os.readlink(f"/proc/self/fd/{name}") == path:
                os.close(int(name))


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    log = _log(root)
    recorder.settled()
    counts = [0] * STREAMS
    positions: dict[tuple[int, int], int] = {}
    synced = [0] * STREAMS
    for _ in range(STEPS):
        how = chance.random()
        if how < 0.55:
            stream = chance.randrange(STREAMS)
            size = chance.randrange(SIZE_MAX)
            recorder.begin(["write", stream, counts[stream]])
            payload = _payload(stream, counts[stream], size)
            positions[stream, counts[stream]] = log.stream(stream, LOG).write([payload])
            counts[stream] += 1
        elif how < 0.8:
            recorder.act(["sync", counts], log.sync)
            synced = list(counts)
        elif how < 0.94:
            stream = chance.randrange(STREAMS)
            upto = chance.randint(synced[stream] // 2, synced[stream])
            if upto:
                recorder.begin(["release", stream, upto])
                log.stream(stream, LOG).release(positions[stream, upto - 1] + 1)
        elif how < 0.97:
            log.rest()  # what was written may be on the disk then, or not
        else:
            if chance.random() < 0.5:
                recorder.act(["sync", counts], log.close)
            else:
                killed(log)
            log = _log(root)
            # What was read at the start is on the disk; so are the positions of what is left.
            recorder.begin(["sync", counts])(None)
            synced = list(counts)
            for stream in range(STREAMS):
                log.stream(stream, LOG).replayed()
    recorder.act(["sync", counts], log.close)


def run_threads(root: Path, recorder: Recorder, chance: random.Random) -> None:
    """Threads that write and wait for their records at the same time."""
    log = _log(root)
    recorder.settled()

    def work(stream: int) -> None:
        own = random.Random(f"{stream}")
        for number in range(STEPS // THREADS):
            recorder.begin(["write", stream, number])
            log.stream(stream, LOG).write([_payload(stream, number, own.randrange(SIZE_MAX))])
            recorder.act(["sync", [number + 1 if stream == other else 0 for other in range(STREAMS)]], log.sync)

    threads = [Thread(target=work, args=(stream,)) for stream in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()


def check(root: Path, history: History) -> None:
    """Every record that was synced and not released is there, whole and in order; no other ones are, and the log goes
    on."""
    tried, needed, released = _bounds(history)
    log = _log(root)
    there = {stream: _read(log, stream) for stream in range(STREAMS)}
    for stream, numbers in there.items():
        require(numbers == sorted(set(numbers)), f"stream {stream}: the order is {some(numbers)}")
        require(max(numbers, default=-1) < tried[stream], f"stream {stream}: record {max(numbers, default=-1)}")
        lost = set(range(released[stream], needed[stream])) - set(numbers)
        require(not lost, f"stream {stream}: lost records {some(sorted(lost))}")
        log.stream(stream, LOG).write([_payload(stream, tried[stream], 100)])
        log.stream(stream, LOG).replayed()
    log.close()
    log = _log(root)
    for stream, numbers in there.items():
        again = _read(log, stream)
        lost = {*numbers, tried[stream]} - set(again)
        require(not lost, f"stream {stream}: lost {some(sorted(lost))} at the second start")
    log.close()


def _bounds(history: History) -> tuple[list[int], list[int], list[int]]:
    """By stream: how many were tried, how many must be there, below what they need not."""
    tried, needed, released = [0] * STREAMS, [0] * STREAMS, [0] * STREAMS
    for act in history.acts:
        kind = act.told[0]
        if kind == "write":
            tried[act.told[1]] = act.told[2] + 1
        elif kind == "release":
            released[act.told[1]] = max(released[act.told[1]], act.told[2])
        elif act.is_done:
            needed = [max(pair) for pair in zip(needed, act.told[1], strict=True)]
    return tried, needed, released


def _read(log: WriteAheadLog, stream: int) -> list[int]:
    numbers = []
    for _, payload in log.stream(stream, LOG).records():
        own, number, size = _told(bytes(payload))
        require(own == stream, f"stream {stream} has a record of {own}")
        require(bytes(payload) == _payload(own, number, size), f"stream {stream}: record {number} is not as written")
        numbers.append(number)
    return numbers


# A new number of workers

WORKERS = (1, 3, 2)
SHARDS = 5


def run_layout(root: Path, recorder: Recorder, chance: random.Random) -> None:
    base = root / "wal"
    count = 0
    for workers in WORKERS:
        recorder.act(["arrange", workers], lambda: layout.arrange(base, workers))  # noqa: B023 (called at once)
        logs = [_log(root, worker) for worker in range(workers)]
        for _ in range(4):
            for shard in range(SHARDS):
                recorder.begin(["write", shard, count])
                area = chance.choice((LOG, SERIES))
                logs[shard % workers].stream(shard, area).write([_payload(shard, count, chance.randrange(SIZE_MAX))])
                count += 1
            for log in logs:
                log.sync()
            recorder.begin(["synced", count])(None)
        for log in logs:
            log.close()


def check_layout(root: Path, history: History) -> None:
    """It opens with any number of workers, and has every record that was synced, each once, for the right worker."""
    tried = {(act.told[1], act.told[2]) for act in history.acts if act.told[0] == "write"}
    synced = max((act.told[1] for act in history.acts if act.told[0] == "synced"), default=0)
    workers = 2
    layout.arrange(root / "wal", workers)
    there: list[tuple[int, int]] = []
    for worker in range(workers):
        log = _log(root, worker)
        for shard in range(SHARDS):
            for area in (LOG, SERIES):
                for _, payload in log.stream(shard, area).records():
                    own, number, size = _told(bytes(payload))
                    require(own == shard and shard % workers == worker, f"worker {worker} has a record of shard {own}")
                    require(bytes(payload) == _payload(own, number, size), f"record {number} is not as written")
                    there.append((own, number))
        log.close()
    require(len(there) == len(set(there)), f"records are there twice: {some(sorted(there))}")
    require(set(there) <= tried, f"invented {some(sorted(set(there) - tried))}")
    lost = {(shard, number) for shard, number in tried if number < synced} - set(there)
    require(not lost, f"lost {some(sorted(lost))} of {synced} synced records")
