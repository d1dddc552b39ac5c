"""`triptych warm`."""

from __future__ import annotations

import click


@click.command()
def warm() -> int:
    """Compile all kernels into the cache on disk: once for each version, before it is started.

    This takes some minutes. Without it, the first start does it beside the first requests.
    """
    from coordinator.warm import run

    return run()
