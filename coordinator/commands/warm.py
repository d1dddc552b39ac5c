"""`triptych warm`."""

from __future__ import annotations

import click


@click.command()
def warm() -> int:
    """Compile all kernels into the disk cache, once for each version and before its first start.

    This takes some minutes. Without it, they are compiled after the first start, while the service already answers.
    """
    from coordinator.warm import run

    return run()
