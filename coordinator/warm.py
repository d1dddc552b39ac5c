"""`python -m coordinator.warm`: put the kernels of the coordinator into the cache on disk, ahead of its first start."""

from __future__ import annotations

import sys
import time

import coordinator.app  # noqa: F401 - imports all modules that declare kernels
from shared import array_memory
from shared.kernels import compile_all


def main() -> None:
    started = time.monotonic()
    array_memory.prepare()
    count = compile_all()
    sys.stdout.write(f"{count} kernels of the coordinator compiled in {time.monotonic() - started:.1f} s\n")


if __name__ == "__main__":
    main()
