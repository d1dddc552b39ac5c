"""The cost of rules: 1,000 rules over 10,000 series every 15 s, in CPU time of all processes of a cluster.

`python -m loadtest.bench.rules` writes the samples of all series every 15 s, first without rules and then with them.
The difference is the cost of the rules. Seven of ten rules record (rates, sums, averages and quantiles by label, some
ten series each); three are alerts, one of which fires.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from loadtest.harness.cluster import Cluster
from loadtest.harness.processes import family, processor_s
from loadtest.harness.remote_write_bodies import HEADERS, compressed

METRICS, JOBS, INSTANCES = 100, 10, 10
INTERVAL_S = 15.0
GROUP_RULES = 20
EXPRESSIONS = (
    "sum by (job) (rate({m}[1m]))",
    "avg by (job) ({m})",
    "max by (instance) ({m})",
    'rate({m}{{job="job-3"}}[1m])',
    "quantile by (job) (0.9, {m})",
    "sum by (job) (increase({m}[1m])) / on (job) sum by (job) ({m})",
    "count by (job) ({m} > 50)",
)
ALERTS = ("{m} > 1e18", "sum by (job) (rate({m}[1m])) < 0", "absent({m}_none) > 0")


def rules() -> str:
    """The rule file."""
    made: list[dict[str, Any]] = []
    for metric in range(METRICS):
        name = f"metric_{metric}"
        made += [
            {"record": f"{name}:{kind}", "expr": expression.format(m=name)}
            for kind, expression in enumerate(EXPRESSIONS)
        ]
        made += [
            {
                "alert": f"Alert{metric}Of{kind}",
                "expr": expression.format(m=name),
                "for": "30s",
                "labels": {"severity": "page"},
                "annotations": {"summary": "{{ $labels.job }} has {{ $value | humanize }}"},
            }
            for kind, expression in enumerate(ALERTS)
        ]
    groups = [
        {"name": f"group-{first}", "interval": f"{INTERVAL_S:g}s", "rules": made[first : first + GROUP_RULES]}
        for first in range(0, len(made), GROUP_RULES)
    ]
    return yaml.safe_dump({"groups": groups})


def write(cluster: Cluster, scrape: int) -> None:
    now_ms = int(time.time() * 1000)
    for metric in range(METRICS):
        series = [
            (
                {"__name__": f"metric_{metric}", "job": f"job-{job}", "instance": f"host-{instance}:9100"},
                [(now_ms, float(scrape * (job + instance)))],
            )
            for job in range(JOBS)
            for instance in range(INSTANCES)
        ]
        answer = cluster.request("POST", "/api/v1/write", compressed(series), HEADERS)
        assert answer.status == 204, answer.body


def share(cluster: Cluster, seconds: float, first: int) -> float:
    """Percent of one core that all processes take while samples are written."""
    processes = family(cluster)
    before, started = processor_s(processes), time.monotonic()
    scrape = first
    while (left_s := started + seconds - time.monotonic()) > 0:
        write(cluster, scrape)
        scrape += 1
        time.sleep(min(left_s, max(0.0, started + (scrape - first) * INTERVAL_S - time.monotonic())))
    return 100 * (processor_s(processes) - before) / (time.monotonic() - started)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0, help="of each of the two measurements")
    seconds = arguments.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="triptych-rules-") as name:
        directory = Path(name)
        config = directory / "prometheus.yml"
        config.write_text("rule_files: [rules.yml]")
        (directory / "rules.yml").write_text("groups: []")
        cluster = Cluster(directory, workers=2, settings={"TRIPTYCH_PROMETHEUS_CONFIG": str(config)})
        cluster.compile_kernels()
        cluster.start()
        try:
            for scrape in range(2):
                write(cluster, scrape)
            without = share(cluster, seconds, 2)
            (directory / "rules.yml").write_text(rules())
            started = time.monotonic()
            answer = cluster.request("POST", "/-/reload")
            assert answer.status == 200, answer.body
            print(f"reload of {METRICS * (len(EXPRESSIONS) + len(ALERTS))} rules: {time.monotonic() - started:.2f} s")
            share(cluster, 2 * INTERVAL_S, 1000)  # plans are made, and new series begin
            with_rules = share(cluster, seconds, 2000)
            groups = cluster.get("/api/v1/rules").json()["data"]["groups"]
            all_rules = [rule for group in groups for rule in group["rules"]]
            failing = [rule for rule in all_rules if rule["health"] != "ok"]
            mean_ms = 1000 * sum(rule["evaluationTime"] for rule in all_rules) / len(all_rules)
            print(f"{len(all_rules)} rules, {len(failing)} not ok, {mean_ms:.2f} ms an evaluation on average")
            print(f"percent of one core: {without:.1f} without rules, {with_rules:.1f} with them, ", end="")
            print(f"{with_rules - without:.1f} for the rules")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
