"""`python -m coordinator.warm`: compiles the coordinator's kernels into the disk cache, before the first start or, with
BESIDE_REQUESTS, in the background of a running coordinator. `triptych warm` also writes Python's bytecode."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shared import telemetry
from shared.process import modules

BESIDE_REQUESTS = "--beside-requests"


def run() -> int:
    """`triptych warm`: compile the kernels of the coordinator and of the workers. Returns the exit code."""
    processes = [_started(module) for module in ("coordinator.warm", "worker.warm")]
    return max(abs(process.wait()) for process in processes)


@contextmanager
def beside_requests(log_level: str) -> Iterator[None]:
    """While the context lasts, fill the cache in a separate process, since compiling would hold the coordinator's
    interpreter lock."""
    process = _started("coordinator.warm", BESIDE_REQUESTS, log_level)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _started(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a process that writes missing bytecode of the modules it imports, even if this process was told to write
    none. Without bytecode, each start takes half a second more CPU time in each process."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(modules.command(module, *arguments), env=environ)


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
