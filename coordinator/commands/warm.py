"""`triptych warm`."""

from __future__ import annotations

import click

from coordinator.command_client import CommandError


@click.command()
def warm() -> int:
    """Compile all kernels into the disk cache, once for each version and before its first start.

    This takes some minutes. Without it, the first start compiles the kernels for writes before it is ready, and the
    rest in the background.
    """
    from coordinator.warm import run

    _require_cache()
    return run()


def _require_cache() -> None:
    """Raises CommandError if the disk cache does not exist and cannot be created: nothing compiled would be kept."""
    from shared.kernels import cache

    try:
        cache.directory().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(
            f"the kernel cache {cache.directory()} cannot be created: {error.strerror}; set XDG_CACHE_HOME to a "
            "directory that this user may write to, here and for the service"
        ) from None
