"""Clusters whose processes are forked from one that has imported everything and loaded all kernels: a start takes some
0.3 s of CPU time instead of four. `tests/cluster/test_lifecycle.py` starts them as a user does."""

from __future__ import annotations

import atexit
import gc
import importlib
import subprocess
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from loadtest.harness.cluster import ROOT, Cluster
from tests.zygote import Zygote, inherited, serve


@dataclass
class ForkedCluster(Cluster):
    """As Cluster, of this source tree. It stores no metrics of its own unless a test asks for it."""

    def environment(self) -> dict[str, str]:
        return super().environment() | {"TRIPTYCH_SELF_SCRAPE": "0"} | dict(self.settings)

    def _spawn(self, module: str) -> subprocess.Popen[bytes]:
        assert self.tree == ROOT
        log = self.directory / f"{module}.log"
        log.touch()
        return cast(Any, _zygote().spawn(module, self.environment(), self.directory, log))


@cache
def _zygote() -> Zygote:
    zygote = Zygote("tests.forked_cluster", inherited() | {"PYTHONPATH": str(ROOT)}, ROOT)
    atexit.register(zygote.close)
    return zygote


def run(module: str) -> None:
    """As `python -m module`, in the forked process."""
    importlib.import_module(f"{module}.__main__").main()


def main() -> None:
    importlib.import_module("coordinator.__main__")
    importlib.import_module("worker.__main__")
    importlib.import_module("worker.methods.table")
    from shared.kernels import compile_all
    from worker.warm import prepare

    compile_all()
    prepare()
    gc.collect()
    gc.freeze()  # otherwise each process looks through all this when it collects, and writes to it: 0.1 s
    serve(run)


if __name__ == "__main__":
    main()
