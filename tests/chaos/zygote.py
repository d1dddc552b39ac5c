"""Forks the processes of clusters with faults: `python -m tests.chaos.zygote`, see `tests.zygote`."""

from __future__ import annotations

import ctypes
import os
import signal

from tests.zygote import PR_SET_PDEATHSIG, serve


def run(module: str) -> None:
    """As if the process had been started with `tests.chaos.launch`."""
    # A worker that is frozen cannot notice that its supervisor is gone.
    os.register_at_fork(after_in_child=lambda: ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    control, data = os.environ["CHAOS_CONTROL"], os.environ["CHAOS_DATA"]
    ctypes.CDLL(None).chaos_attach(control.encode(), data.encode())
    from tests.chaos import launch  # imported already, in `main`

    launch.start(module)


def main() -> None:
    import coordinator.app  # noqa: F401 (what is imported here, no start has to import)
    from shared.kernels import compile_first
    from tests.chaos import launch  # noqa: F401
    from worker.methods import table  # noqa: F401

    compile_first()
    serve(run)


if __name__ == "__main__":
    main()
