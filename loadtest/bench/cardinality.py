"""How long a worker counts the series of its shards by label: `python -m loadtest.bench.cardinality`."""

from __future__ import annotations

import argparse
import time
from types import SimpleNamespace
from typing import cast

import numpy as np

from shared.labels import encode
from shared.messages.cardinality import CardinalityBody
from shared.promql.ast import Matcher
from shared.xxh64 import hash_slices
from worker.series.cardinality import cardinality
from worker.series.contents import Contents
from worker.series.index.texts import TextTable
from worker.series.part import SeriesPart

SHARDS = 4
AT_ONCE = 10_000
ROUNDS = 5
QUERIES = {
    "all series": CardinalityBody([()]),
    "all series, one of two workers": CardinalityBody([()], focus="pod", hashes_max=1 << 19),
    'job=~".+" (all series)': CardinalityBody([(Matcher("job", "=~", ".+"),)], hashes_max=1 << 19),
    "one metric": CardinalityBody([(Matcher("__name__", "=", "metric_7"),)], hashes_max=1 << 19, focus="pod"),
}


def _series(shard: int, i: int) -> bytes:
    labels = {
        "__name__": f"metric_{i % 500}",
        "code": str(200 + i % 5),
        "instance": f"host-{i % 2000}:9100",
        "job": f"job-{i % 20}",
        "method": "GET",
        "path": f"/p/{i % 100}",
        "pod": f"pod-{shard}-{i}",
        "zone": f"zone-{i % 3}",
    }
    return encode(tuple(labels.items()))


def _part(symbols: TextTable, shard: int, series: int) -> SeriesPart:
    """What is counted of a part: its index."""
    contents = Contents(symbols)
    for first in range(0, series, AT_ONCE):
        raw = [_series(shard, i) for i in range(first, min(first + AT_ONCE, series))]
        data = np.frombuffer(b"".join(raw), dtype=np.uint8)
        offsets = np.concatenate(([0], np.cumsum([len(one) for one in raw], dtype=np.int64)))
        contents.index.resolve(data, offsets[:-1], offsets[1:], hash_slices(data, offsets))
    part = SimpleNamespace(contents=contents, services=SimpleNamespace(symbols=symbols), lookup=contents.index.lookup)
    return cast(SeriesPart, part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--series", type=int, default=1_000_000)
    series = parser.parse_args().series
    symbols = TextTable()
    parts = [_part(symbols, shard, series // SHARDS) for shard in range(SHARDS)]
    for name, wanted in QUERIES.items():
        took = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            reply, _ = cardinality(parts, wanted, lambda: None)
            took.append(time.perf_counter() - started)
        print(f"{name}: {reply.series} series in {sorted(took)[ROUNDS // 2] * 1000:.0f} ms")


if __name__ == "__main__":
    main()
