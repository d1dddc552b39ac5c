"""A data directory of each format, kept as it was written, with the answers it gave.

`python -m tests.check.formats` writes `format-N.tar.xz` here for the format of this release, where there is none yet;
with a name, `NAME.tar.xz`. Those of earlier formats stay as they are: they are what an upgrade is tested with.
`format-1-last.tar.xz` is of the last release that wrote format 1.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

from loadtest.harness.cluster import Cluster
from shared.manifest import FORMAT
from tests.check import kinds
from tests.check.directory import SETTINGS, SHARDS, WORKERS, start_and_write
from tests.forked_cluster import ForkedCluster

ANSWERS = "answers.json"
SEARCH = {"vector": [0.5, -1.0, 0.25, 0.0, 1.5, 2.0, -0.5, 0.75], "k": 20}


def kept() -> list[Path]:
    """The directories that are kept, each with its answers."""
    return sorted(Path(__file__).parent.glob("format-*.tar.xz"))


def of_format(directory: Path) -> Cluster:
    """The cluster whose data directory is `directory/data`, not started."""
    return ForkedCluster(directory, SHARDS, WORKERS, SETTINGS | {"TRIPTYCH_ADMIN_API": "true"})


def ask(cluster: Cluster, paths: list[str]) -> dict[str, Any]:
    """What it answers to these GET requests, by path, and to one search."""
    answers = {}
    for path in paths:
        answer = cluster.get(path)
        assert answer.status == 200, answer.body
        answers[path] = answer.json()
    found = cluster.post_json("/api/v1/vector/search", SEARCH)
    assert found.status == 200, found.body
    answers["search"] = found.json()
    return answers


def _paths(end: int) -> list[str]:
    """Of the data that has been written just now."""
    start = end - 1200
    return [
        f"/api/v1/query?query=sort(sum_over_time(m[30m]))&time={end}",
        f"/api/v1/query_range?query=sum(m)&start={start}&end={end}&step=7",
        f"/api/v1/series?match[]=m&start={start}&end={end}",
        "/api/v1/log/count",
        "/api/v1/log/scan?prefix=key%20&limit=200",
        "/api/v1/log/keys",
        "/api/v1/vector/vectors/v7",
        *kinds.paths(end),
    ]


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else f"format-{FORMAT}"
    target = Path(__file__).with_name(f"{name}.tar.xz")
    assert not target.exists(), f"{target} is there already, and must stay as it was written"
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        cluster = of_format(directory)
        try:
            start_and_write(cluster)
            end = int(time.time())
            kinds.write(cluster, 1000 * end)
            kinds.write_histograms(cluster, 1000 * end)
            (directory / ANSWERS).write_text(json.dumps(ask(cluster, _paths(end))))
        finally:
            cluster.kill()  # so that the write-ahead log holds records
        with tarfile.open(target, "w:xz") as archive:
            for part in ("data", ANSWERS):
                archive.add(
                    directory / part, part, filter=lambda entry: None if entry.name.startswith("data/run") else entry
                )


if __name__ == "__main__":
    main()
