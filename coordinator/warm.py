"""`python -m coordinator.warm`: compile the kernels of the coordinator into the cache on disk, ahead of its first
start; with BESIDE_REQUESTS, in the background of one. `triptych warm` has Python's bytecode written as well."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shared import telemetry

BESIDE_REQUESTS = "--beside-requests"


def run() -> int:
    """`triptych warm`: those of the workers as well. Returns the exit code."""
    processes = [_started(module) for module in ("coordinator.warm", "worker.warm")]
    return max(abs(process.wait()) for process in processes)


@contextmanager
def beside_requests(log_level: str) -> Iterator[None]:
    """Fill the cache meanwhile, in a process of its own: compiling would hold the coordinator's interpreter lock."""
    process = _started("coordinator.warm", BESIDE_REQUESTS, log_level)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _started(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """It writes the bytecode of what it imports where that is missing, also if this process was told to write none:
    compiling the modules anew takes each start half a second of processor time in each process."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen([sys.executable, "-m", module, *arguments], env=environ)


def import_kernels() -> None:
    """Import all modules of the coordinator and of its commands that declare kernels."""
    import coordinator.app
    import coordinator.transfer.csv_ends
    import coordinator.transfer.openmetrics_walk
    import coordinator.transfer.tsdb_histograms  # noqa: F401


def main(arguments: list[str]) -> None:
    from shared import warming

    import_kernels()
    if arguments[:1] == [BESIDE_REQUESTS]:
        telemetry.configure(arguments[1])
        warming.fill_beside_requests()
    else:
        warming.fill("coordinator")


if __name__ == "__main__":
    main(sys.argv[1:])
