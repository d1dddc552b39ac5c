"""Remote write 2.0 compared with 1.0, in whole requests: `python -m loadtest.bench.write_versions`.

The data is that of `make bench`: 10,000 series with seven labels, over four connections, 2,000 series with one sample
in each request. A cluster receives one version, then the other, and in the next turn in reverse order, with later
times; `--tree` names another source tree, whose cluster takes turns with this one. Prints the CPU time in µs per
request, by process, and the rate. The first turn, in which the senders are not known yet, does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import snappy

from loadtest.bench.metrics.payloads import REQUEST_SERIES, STEP_MS, Workload, requests
from loadtest.bench.metrics.sending import VERSION_1, VERSION_2, send
from loadtest.bench.path import processes
from loadtest.harness.cluster import ROOT, Cluster, side_by_side
from loadtest.harness.remote_write_bodies import Symbols
from proto.remote_write_pb2 import WriteRequest
from proto.remote_write_v2_pb2 import Request

SERIES, CONNECTIONS, SHARDS, WORKERS = 10_000, 4, 4, 2
TURNS, STEPS_A_TURN = 9, 40
"""The first does not count; in a turn each version has so many samples of each series."""
VERSIONS = {"1.0": VERSION_1, "2.0": VERSION_2}

Streams = list[list[bytes]]


def by_version_2(sent: bytes) -> bytes:
    """A request of version 1.0, both compressed, by version 2.0."""
    symbols, second = Symbols(), Request()
    for series in WriteRequest.FromString(snappy.decompress(sent)).timeseries:
        entry = second.timeseries.add()
        entry.labels_refs.extend(symbols.place(text) for label in series.labels for text in (label.name, label.value))
        for sample in series.samples:
            entry.samples.add(value=sample.value, timestamp=sample.timestamp)
    second.symbols.extend(symbols.places)
    return bytes(snappy.compress(second.SerializeToString()))


def turns() -> Iterator[list[tuple[str, Streams]]]:
    """What is sent in each turn: the version and its requests, in order."""
    samples = TURNS * len(VERSIONS) * STEPS_A_TURN
    start_ms = (int(time.time() * 1000) // STEP_MS - samples) * STEP_MS
    streams = requests(Workload("m", SERIES, samples, start_ms), CONNECTIONS)
    size = len(streams[0]) // (TURNS * len(VERSIONS))
    every = [[stream[i * size : (i + 1) * size] for stream in streams] for i in range(TURNS * len(VERSIONS))]
    for turn in range(TURNS):
        pair = zip(VERSIONS if turn % 2 == 0 else reversed(VERSIONS), every[2 * turn :], strict=False)
        yield [
            (version, own if version == "1.0" else [[*map(by_version_2, one)] for one in own]) for version, own in pair
        ]


def used_us(cluster: Cluster) -> dict[str, float]:
    """Microseconds of CPU time of each process so far, of the threads that it has."""
    threads = {name: Path(f"/proc/{own.pid}/task").glob("*/schedstat") for name, own in processes(cluster).items()}
    return {name: sum(int(path.read_text().split()[0]) for path in own) / 1e3 for name, own in threads.items()}


def measure(cluster: Cluster, streams: Streams, version: tuple[str, str]) -> dict[str, float]:
    """Microseconds of CPU time a request, by process, and the rate in samples/s."""
    before = used_us(cluster)
    took, _ = send(cluster.port, streams, version)
    count = sum(map(len, streams))
    costs = {name: (used - before[name]) / count for name, used in used_us(cluster).items()}
    return {**costs, "samples/s": count * REQUEST_SERIES / took}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tree", type=Path, action="append", default=[], help="another source tree to compare with")
    trees = [*options.parse_args().tree, ROOT]
    sent = [*turns()]
    took: dict[tuple[str, Path], list[dict[str, float]]] = defaultdict(list)
    with side_by_side({str(tree): tree for tree in trees}, SHARDS, WORKERS) as clusters:
        for version, streams in chain.from_iterable(sent):
            for tree in trees:
                took[version, tree].append(measure(clusters[str(tree)], streams, VERSIONS[version]))
    names = [*took["1.0", ROOT][0]]
    sys.stdout.write(f"{'µs a request of 2,000 series':<40}" + "".join(f"{name:>14}" for name in names) + "\n")
    for (version, tree), figures in took.items():
        medians = [statistics.median(each[name] for each in figures[1:]) for name in names]
        where = "" if len(trees) == 1 else f", {tree.name}"
        sys.stdout.write(f"{version + where:<40}" + "".join(f"{median:>14,.0f}" for median in medians) + "\n")


if __name__ == "__main__":
    main()
