"""`triptych warm`."""

from __future__ import annotations

import click


@click.command()
def warm() -> int:
    """Compile all kernels into the disk cache, once for each version and before its first start.

    This takes some minutes. Without it, the first start compiles the kernels for writes before it is ready, and the
    rest in the background.
    """
    from coordinator.warm import run

    return run()
