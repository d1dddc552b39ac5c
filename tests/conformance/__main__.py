"""`python -m tests.conformance`: passed, failed and unsupported evaluations per script and back end, as a table."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import suite
from tests.conformance.runner import Backend

CLUSTER_SHARDS = 3


@contextmanager
def open_backend(mode: str) -> Iterator[Backend]:
    """The back end of a mode; a cluster is started for it and stopped after it."""
    if mode == "memory":
        from tests.conformance.memory_backend import MemoryBackend

        yield MemoryBackend()
        return
    if mode == "oracle":
        from tests.conformance.oracle_backend import OracleBackend

        yield OracleBackend()
        return
    from loadtest.harness.cluster import Cluster
    from tests.conformance.cluster_backend import ClusterBackend

    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory), shards=CLUSTER_SHARDS, settings={"TRIPTYCH_SELF_SCRAPE": "0"})
        backend = None
        try:
            cluster.start()
            backend = ClusterBackend(cluster.port)
            yield backend
        finally:
            if backend is not None:
                backend.close()
            cluster.stop()


def main() -> int:
    """Exit code 1 when any evaluation fails."""
    arguments = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    arguments.add_argument("--mode", choices=("memory", "cluster", "oracle", "both"), default="both")
    arguments.add_argument("--verbose", action="store_true", help="show every failure")
    arguments.add_argument("--unsupported", action="store_true", help="show what is not supported, and why")
    arguments.add_argument("--record", action="store_true", help=f"write the counts to {suite.RECORDED.name}")
    arguments.add_argument("scripts", nargs="*", type=Path, help="default: every script")
    chosen = arguments.parse_args()
    paths = chosen.scripts or suite.scripts()
    out = sys.stdout
    if not chosen.scripts and not suite.PROMQLTEST.is_dir():
        out.write(f"{suite.PROMQLTEST} is not there: only the project's own scripts are run\n")
    failed = 0
    for mode in ("memory", "cluster") if chosen.mode == "both" else (chosen.mode,):
        with open_backend(mode) as backend:
            outcomes = suite.run(paths, backend)
        shown = {"failed"} if chosen.verbose else set()
        shown |= {"unsupported"} if chosen.unsupported else set()
        for name, found in outcomes.items():
            for one in found:
                if one.verdict in shown:
                    out.write(f"{name}:{one.line}: {one.verdict}: {one.query}\n    {one.detail}\n")
        counts = suite.count(outcomes)
        if chosen.record:
            suite.record(mode, counts)
        out.write(table(mode, counts))
        failed += sum(row["failed"] for row in counts.values())
    return 1 if failed else 0


def table(mode: str, counts: suite.Counts) -> str:
    width = max((len(name) for name in counts), default=0)
    total: dict[str, int] = {verdict: sum(row[verdict] for row in counts.values()) for verdict in suite.VERDICTS}
    lines = [f"{mode:<{width}}  " + "  ".join(f"{verdict:>11}" for verdict in suite.VERDICTS)]
    for name, row in [*counts.items(), ("total", total)]:
        lines.append(f"{name:<{width}}  " + "  ".join(f"{row[verdict]:>11}" for verdict in suite.VERDICTS))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
