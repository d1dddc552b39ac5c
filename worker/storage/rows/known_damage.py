"""Remembers over a restart that a store was found damaged while it was in use: a file beside the store,
`store.damaged`, says what was found. A start that finds this file reads the whole store before it serves, because the
damage may be where a start does not look. If the file is deleted, the store is served without that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from shared.durable import DAMAGED, write_atomically
from shared.telemetry import event
from worker.storage.rows.damage import StoreDamaged

SHOWN = 3


def path_of(store: Path) -> Path:
    return store.with_name(store.name + DAMAGED)


def remember(store: Path, text: str) -> None:
    """On the disk when this returns; a disk that refuses is logged."""
    try:
        write_atomically(path_of(store), text.encode())
    except OSError as error:
        event(logging.ERROR, "damage of a store is not remembered", path=str(store), reason=error.strerror)


def verify(store: Path, check: Callable[[Path], list[str]]) -> None:
    """Nothing for a store that was not found damaged. One that `check` finds well is forgotten to have been. Raises
    StoreDamaged for one that still is, StoreLocked when another process has it, OSError."""
    path = path_of(store)
    if not path.exists() or not store.exists():
        return
    texts = check(store)
    if texts:
        more = f", and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
        raise StoreDamaged("; ".join(texts[:SHOWN]) + more)
    event(
        logging.WARNING,
        "a store that was found damaged reads well",
        path=str(store),
        was=path.read_text(errors="replace"),
    )
    path.unlink()  # if the loss of power brings it back, the store is read once more
