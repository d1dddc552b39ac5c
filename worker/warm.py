"""What workers need before they take requests. `prepare` makes it in the process that they are forked from;
`python -m worker.warm` compiles their kernels into the disk cache before their first start."""

from __future__ import annotations

import worker.methods.table  # noqa: F401 - imports all modules that declare kernels
from shared import warming
from shared.kernels import compile_first, load_all
from shared.process import array_memory
from shared.promql import parser


def prepare() -> bool:
    """Load or compile the kernels that are needed first, load all others that the disk cache has, and build the tables
    of the query parser, for which the first query of each worker would otherwise wait 0.1 s. Starts no thread. Returns
    whether the cache has all kernels."""
    compile_first()
    array_memory.prepare()
    parser.parse("1")
    return load_all() == 0


def main() -> None:
    parser.parse("1")  # writes its tables
    warming.fill("workers")


if __name__ == "__main__":
    main()
