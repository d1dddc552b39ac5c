"""`python -m coordinator.warm`: compile the kernels of the coordinator into the cache on disk, ahead of its first
start; with BESIDE_REQUESTS, in the background of one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shared import telemetry, warming

BESIDE_REQUESTS = "--beside-requests"


def run() -> int:
    """`triptych warm`: those of the workers as well. Returns the exit code."""
    modules = ("coordinator.warm", "worker.warm")
    processes = [subprocess.Popen([sys.executable, "-m", module]) for module in modules]
    return max(abs(process.wait()) for process in processes)


@contextmanager
def beside_requests(log_level: str) -> Iterator[None]:
    """Fill the cache meanwhile, in a process of its own: compiling would hold the coordinator's interpreter lock."""
    process = subprocess.Popen([sys.executable, "-m", "coordinator.warm", BESIDE_REQUESTS, log_level])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def main(arguments: list[str]) -> None:
    import coordinator.app  # imports all modules that declare kernels, but for those of commands
    import coordinator.transfer.tsdb_chunks  # noqa: F401

    if arguments[:1] == [BESIDE_REQUESTS]:
        telemetry.configure(arguments[1])
        warming.fill_beside_requests()
    else:
        warming.fill("coordinator")


if __name__ == "__main__":
    main(sys.argv[1:])
