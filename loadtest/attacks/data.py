"""What the cluster holds before it is attacked: enough for the attacks to hurt."""

from __future__ import annotations

import random
import string
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.attacks import target as names
from loadtest.attacks.target import Target
from loadtest.bench.log_load import fill
from loadtest.bench.metrics.payloads import STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import send
from loadtest.bench.vector_data import clustered
from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import compressed
from proto import vector_pb2

CONNECTIONS = 4
SERIES_STEP = 2_000
"""Series come in multiples of this, so that they divide among the connections."""
WRITE_VECTORS = 1_000
LONG_VALUES_A_REQUEST = 20
BYSTANDER_RECORDS = 10
WRITE_WITHIN_S, RETRY_S = 60.0, 1.0


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of everything; `scaled` makes less of it."""

    series: int = 10_000
    samples: int = 240  # of each series: an hour at STEP_MS
    grid_series: int = 4_500
    long_values: int = 200
    records: int = 100_000
    vectors: int = 50_000

    def scaled(self, scale: float) -> Amounts:
        return Amounts(
            series=max(SERIES_STEP, round(self.series * scale / SERIES_STEP) * SERIES_STEP),
            samples=self.samples,
            grid_series=max(1, round(self.grid_series * scale)),
            long_values=max(1, round(self.long_values * scale)),
            records=max(1, round(self.records * scale)),
            vectors=max(1, round(self.vectors * scale)),
        )


def load(cluster: Cluster, amounts: Amounts) -> Target:
    """Fill an empty cluster; every write is acknowledged when this returns."""
    end_ms = int(time.time() * 1000) // STEP_MS * STEP_MS
    history = Workload(names.METRIC, amounts.series, amounts.samples, end_ms - (amounts.samples - 1) * STEP_MS)
    _write(cluster, requests(history, CONNECTIONS))
    _write(cluster, [_few_series(amounts, end_ms), _long_values(amounts.long_values, end_ms)])
    _load_log(cluster, amounts.records)
    _load_vectors(cluster, amounts.vectors)
    return Target(cluster.port, end_ms // 1000)


def _write(cluster: Cluster, streams: Sequence[Sequence[bytes]]) -> None:
    """Again from the beginning when a write is refused, which changes nothing that was written before."""
    give_up = time.monotonic() + WRITE_WITHIN_S
    while True:
        try:
            send(cluster.port, streams)
            return
        except RuntimeError:
            if time.monotonic() > give_up:
                raise
            time.sleep(RETRY_S)


def _few_series(amounts: Amounts, end_ms: int) -> list[bytes]:
    grid = [({"__name__": names.GRID_METRIC, "i": str(i)}, [(end_ms, 1.0)]) for i in range(amounts.grid_series)]
    return [compressed([*grid, ({"__name__": "up", "job": "bystander"}, [(end_ms, 1.0)])])]


def _long_values(count: int, end_ms: int) -> list[bytes]:
    """Texts of a and b at random, which make the automaton of an expression as large as it can get."""
    chooser = random.Random(1)
    series = [
        (
            {"__name__": names.LONG_METRIC, "text": "".join(chooser.choices("ab", k=names.LONG_VALUE_BYTES))},
            [(end_ms, 1.0)],
        )
        for _ in range(count)
    ]
    return [compressed(series[i : i + LONG_VALUES_A_REQUEST]) for i in range(0, count, LONG_VALUES_A_REQUEST)]


def _load_log(cluster: Cluster, records: int) -> None:
    fill(cluster, lambda _: names.LOG_KEY.encode(), range(records))
    fill(cluster, lambda _: names.BYSTANDER_KEY.encode(), range(BYSTANDER_RECORDS))


def _load_vectors(cluster: Cluster, count: int) -> None:
    vectors = clustered(count, names.COLLECTION_DIMENSION, seed=1)
    colours = random.Random(1)
    for first in range(0, count, WRITE_VECTORS):
        request = vector_pb2.WriteRequest()
        for number in range(first, min(first + WRITE_VECTORS, count)):
            vector = request.upsert_vectors.add(id=f"v-{number}")
            vector.attributes["vector"].vector_value.values.extend(vectors[number])
            vector.attributes["colour"].string_value = colours.choice(string.ascii_lowercase)
        kind = {"Content-Type": "application/protobuf"}
        answer = cluster.request("POST", "/api/v1/vector/write", request.SerializeToString(), kind)
        if answer.status != 200:
            raise RuntimeError(f"a write of vectors gave {answer.status}: {answer.body[:300]!r}")
