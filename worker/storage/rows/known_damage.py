"""Records, for the next start, that a store was found damaged while it was in use: the file `store.damaged` beside the
store describes the damage. A start that finds this file reads the whole store before it serves, because the damage may
be in a part that a start does not read. If the file is deleted, the start does not read the whole store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from shared.durable import DAMAGED, write_atomically
from shared.telemetry import event
from worker.storage.rows.damage import StoreDamaged

SHOWN = 3
"""How many damages a message describes; the others are only counted."""


def path_of(store: Path) -> Path:
    """The file that describes the damage of this store."""
    return store.with_name(store.name + DAMAGED)


def remember(store: Path, text: str) -> None:
    """Write `text` to the file; it is on the disk when this returns. Raises nothing: a failure to write is logged."""
    try:
        write_atomically(path_of(store), text.encode())
    except OSError as error:
        event(logging.ERROR, "damage of a store is not remembered", path=str(store), reason=error.strerror)


def verify(store: Path, check: Callable[[Path], list[str]]) -> None:
    """Check a store that was found damaged; do nothing for any other store. The file is removed if `check` returns no
    text. Raises StoreDamaged if the store is still damaged, StoreLocked if another process has it open, OSError."""
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
    path.unlink()  # if a loss of power brings it back, the store is only read once more
