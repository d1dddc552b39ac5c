"""The cost of the service's own metrics: CPU time of all processes of an idle cluster, with and without the
self-scrape, and that of one scrape of /metrics over HTTP.

    python -m loadtest.bench.self_scrape [seconds]
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.processes import family, processor_s

INTERVALS = {"off": "0", "15s": "15s", "1s": "1s"}
SETTLE_S = 10.0
SCRAPES = 20


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0
    with tempfile.TemporaryDirectory() as directory:
        clusters = {}
        for name, interval in INTERVALS.items():
            (Path(directory) / name).mkdir()
            settings = {"TRIPTYCH_SELF_SCRAPE": interval}
            clusters[name] = Cluster(Path(directory) / name, workers=2, settings=settings).start()
        try:
            time.sleep(SETTLE_S)
            families = {name: family(cluster) for name, cluster in clusters.items()}
            before = {name: processor_s(processes) for name, processes in families.items()}
            time.sleep(seconds)
            shares = {name: (processor_s(families[name]) - before[name]) / seconds for name in clusters}
            series = clusters["1s"].get("/api/v1/query", query="scrape_samples_scraped").json()["data"]["result"]
            count = series[0]["value"][1]
            for name, share in shares.items():
                more = share - shares["off"]
                print(f"{name:>4}: {100 * share:.2f} % of a core, {100 * more:+.2f} % by the self-scrape")
            print(f"one self-scrape of {count} series: {1000 * (shares['1s'] - shares['off']):.1f} ms in all processes")
            idle = clusters["off"]
            start_s = processor_s(families["off"])
            for _ in range(SCRAPES):
                idle.get("/metrics")
                time.sleep(1.0)
            took_s = processor_s(families["off"]) - start_s - SCRAPES * shares["off"]
            print(f"one scrape of /metrics over HTTP: {1000 * took_s / SCRAPES:.1f} ms in all processes")
        finally:
            for cluster in clusters.values():
                cluster.stop()


if __name__ == "__main__":
    main()
