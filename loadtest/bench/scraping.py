"""The cost of scraping: CPU time of all processes of a cluster that scrapes many targets, without that of the targets,
and of a cluster that scrapes none.

    python -m loadtest.bench.scraping [targets] [series of each] [interval in s] [seconds]
"""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.ports import free_port
from loadtest.harness.processes import end, family, processor_s

SETTLE_INTERVALS = 2
VARIANTS = 4
"""Responses that a target sends in turn: creating a new one each time would take CPU time from the cluster."""


def exposition(series: int, variant: int) -> bytes:
    """Counters of 20 series each, with labels as an HTTP server has them."""
    lines = []
    for i in range(series):
        if i % 20 == 0:
            name = f"http_server_{i // 20}_requests_total"
            lines += [f"# HELP {name} Requests that the server has answered.", f"# TYPE {name} counter"]
        labels = f'code="{200 + i % 5}",handler="/api/v1/things/{i % 20}",method="GET",zone="eu-west-1"'
        lines.append(f"{name}{{{labels}}} {i * 1000 + variant * 17}")
    return "\n".join(lines).encode() + b"\n"


async def serve_targets(port: int, targets: int, series: int) -> None:
    """Targets at 127.0.0.1, 127.0.0.2 …"""
    bodies = [gzip.compress(exposition(series, variant), 6) for variant in range(VARIANTS)]
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Encoding: gzip\r\n"
    answers = [head + b"Content-Length: %d\r\n\r\n" % len(body) + body for body in bodies]

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        turn = 0
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answers[turn % VARIANTS])
                turn += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, addresses(targets), port)
    await server.serve_forever()


def addresses(targets: int) -> list[str]:
    return [f"127.0.{i // 250}.{i % 250 + 1}" for i in range(targets)]


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve_targets(*map(int, sys.argv[2:5])))
        return
    targets, series, interval_s, seconds = map(int, [*sys.argv[1:5], *("100", "1000", "15", "60")[len(sys.argv) - 1 :]])
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "prometheus.yml"
        hosts = [f"{address}:{port}" for address in addresses(targets)]
        job = {"job_name": "bench", "static_configs": [{"targets": hosts}]}
        config.write_text(json.dumps({"global": {"scrape_interval": f"{interval_s}s"}, "scrape_configs": [job]}))
        command = [sys.executable, "-m", "loadtest.bench.scraping", "serve", str(port), str(targets), str(series)]
        server = subprocess.Popen(command)
        clusters = {}
        for name, settings in (("idle", {}), ("scraping", {"TRIPTYCH_PROMETHEUS_CONFIG": str(config)})):
            (Path(directory) / name).mkdir()
            own = {"TRIPTYCH_SELF_SCRAPE": "0", **settings}
            clusters[name] = Cluster(Path(directory) / name, workers=2, settings=own)
        try:
            clusters["idle"].compile_kernels()
            for cluster in clusters.values():
                cluster.start()
            time.sleep(SETTLE_INTERVALS * interval_s + 5)
            families = {name: family(cluster) for name, cluster in clusters.items()}
            before = {name: processor_s(processes) for name, processes in families.items()}
            stored = _stored(clusters["scraping"])
            time.sleep(seconds)
            used = {name: processor_s(families[name]) - before[name] for name in clusters}
            samples = _stored(clusters["scraping"]) - stored
            more_s = used["scraping"] - used["idle"]
            print(
                f"{targets} targets of {series} series every {interval_s} s: {samples / seconds:.0f} samples/s stored"
            )
            share, each_us = 100 * more_s / seconds, 1e6 * more_s / samples
            print(f"{share:.2f} % of a core beside an idle cluster, {each_us:.2f} µs a sample")
        finally:
            for cluster in clusters.values():
                cluster.stop()
            end(server, 5)


def _stored(cluster: Cluster) -> float:
    lines = cluster.get("/metrics").body.decode().splitlines()
    return float(next(line for line in lines if line.startswith("triptych_scrape_samples_total")).split()[1])


if __name__ == "__main__":
    main()
