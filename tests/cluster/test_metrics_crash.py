"""Every process of a cluster is killed at random while it takes samples in: what was acknowledged is there afterwards,
and nothing that was not sent. Sealing, compaction and journal cuts run all the time, so that they are cut short too.

`TRIPTYCH_CRASH_ROUNDS` and `TRIPTYCH_CRASH_SEED` say how often, and which sequence of random numbers.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

ROUNDS = int(os.environ.get("TRIPTYCH_CRASH_ROUNDS", "3"))
SEED = int(os.environ.get("TRIPTYCH_CRASH_SEED", "20261120"))
WRITERS = 3
SERIES = 40
BATCH_SERIES = 15
ANSWER_WITHIN_S = 20.0
SETTINGS = {"TRIPTYCH_HEAD_BYTES": "20000", "TRIPTYCH_BLOCK_WINDOW": "2s", "TRIPTYCH_BLOCK_CACHE_BYTES": "1MB"}

Sample = tuple[int, int, int]
"""Writer, series, number; the time of a sample, and its value, follow from its number."""


@dataclass
class Ledger:
    """What was sent, and what of it was acknowledged."""

    start_ms: int
    sent: set[Sample] = field(default_factory=set)
    kept: set[Sample] = field(default_factory=set)

    def at_ms(self, number: int) -> int:
        return self.start_ms + number * 7


def labels(writer: int, series: int) -> dict[str, str]:
    return {"__name__": f"crash_{series % 5}", "writer": str(writer), "series": str(series)}


def write(
    cluster: Cluster, ledger: Ledger, writer: int, number: int, random_: random.Random, stop: threading.Event
) -> None:
    """Write samples with numbers after `number` until told to stop."""
    while not stop.is_set():
        number += 1
        # Some come late, so that they fall into windows that are sealed.
        own = {(writer, random_.randrange(SERIES), number) for _ in range(BATCH_SERIES)}
        for _, series, _ in list(own)[:3]:
            own.add((writer, series, random_.randrange(max(1, number - 500), number + 1)))
        body = compressed(
            [(labels(w, series), [(ledger.at_ms(at), float(at))]) for w, series, at in sorted(own, key=lambda s: s[2])]
        )
        ledger.sent |= own
        try:
            answer = cluster.request("POST", "/api/v1/write", body, HEADERS)
        except OSError:
            time.sleep(0.02)
            continue
        if answer.status == 204:
            ledger.kept |= own
        else:
            assert answer.status in (429, 503), answer.body
            time.sleep(0.02)


def found(cluster: Cluster, ledger: Ledger) -> set[Sample]:
    query = {"query": '{__name__=~"crash_.*"}[1h]', "time": str((ledger.start_ms + 3_000_000) / 1000)}
    give_up = time.monotonic() + ANSWER_WITHIN_S
    while (answer := cluster.get("/api/v1/query", **query, partial_response="false")).status == 503:
        # A worker that was killed a moment ago may still be taken for alive.
        assert time.monotonic() < give_up, answer.body
        time.sleep(0.05)
    assert answer.status == 200, answer.body
    assert not answer.json().get("warnings"), answer.json()["warnings"]
    samples = set()
    for series in answer.json()["data"]["result"]:
        for at, value in series["values"]:
            number = int(float(value))
            assert round(at * 1000) == ledger.at_ms(number), (series["metric"], at, value)
            sample = (int(series["metric"]["writer"]), int(series["metric"]["series"]), number)
            assert sample not in samples
            samples.add(sample)
    return samples


def hurt(cluster: Cluster, random_: random.Random) -> None:
    """Kill one worker, all processes, or one half of them, and have everything run again."""
    kind = random_.choice(["worker", "all", "workers", "coordinator"])
    if kind == "worker":
        cluster.kill_worker(random_.choice(sorted(cluster.worker_pids())))
    elif kind == "all":
        cluster.kill()
        cluster.start()
    elif kind == "workers":
        assert cluster.supervisor is not None
        pids = cluster.worker_pids()
        cluster.supervisor.kill()
        cluster.supervisor.wait()
        for name in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[name], signal.SIGKILL)
        cluster.start_workers()
    else:
        assert cluster.coordinator is not None
        cluster.coordinator.kill()
        cluster.coordinator.wait()
        cluster.start_coordinator()
    cluster.wait_ready()


@pytest.mark.timeout(60 + 40 * ROUNDS)
def test_kills_during_ingest_lose_and_invent_nothing(new_cluster: Callable[..., Cluster]) -> None:
    cluster = new_cluster(shards=2, workers=2, settings=SETTINGS).start()
    random_ = random.Random(SEED)
    # Some of the windows are past, so that blocks of them are merged.
    ledger = Ledger(int(time.time() * 1000) - 60_000)
    for round_ in range(ROUNDS):
        stop = threading.Event()
        number = max((own[2] for own in ledger.sent), default=0)
        with ThreadPoolExecutor(WRITERS) as pool:
            writers = [
                pool.submit(write, cluster, ledger, writer, number, random.Random(random_.random()), stop)
                for writer in range(WRITERS)
            ]
            try:
                time.sleep(random_.uniform(1.0, 2.5))
                hurt(cluster, random_)
                time.sleep(random_.uniform(0.0, 0.5))
                if random_.random() < 0.5:
                    hurt(cluster, random_)
            finally:
                stop.set()
            for writer in writers:
                writer.result()
        there = found(cluster, ledger)
        assert ledger.kept - there == set(), f"lost in round {round_} of seed {SEED}"
        assert there - ledger.sent == set(), f"invented in round {round_} of seed {SEED}"
    log = cluster.log("worker")
    assert "samples sealed" in log and "blocks merged" in log
    assert "upkeep failed" not in log and "set aside" not in log and "skipped" not in log
    assert len(ledger.kept) > 500 * ROUNDS
