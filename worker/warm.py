"""`python -m worker.warm`: compile the kernels of the workers into the cache on disk, ahead of their first start."""

from __future__ import annotations

import worker.methods.table  # noqa: F401 - imports all modules that declare kernels
from shared import warming


def main() -> None:
    warming.fill("workers")


if __name__ == "__main__":
    main()
