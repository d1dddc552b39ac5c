"""An image of an open store: in another directory, its files as the death of the process would leave them at one
moment.

The tables are hard links, since they never change. The library's log and its manifest are copied, because they grow.
Whatever the library does meanwhile, the image is what a crash at one moment leaves: all logged writes up to some moment
during the copy, and those unlogged writes that are in tables. The library changes its manifest before it deletes a
table or a log that the manifest needs, and after it has written a new table. So if the manifest is the same before and
after the copy, every file that it needs existed all the time; otherwise the copy begins again.

RocksDB's own checkpoints would serve too, but they sync several files of each store, one after the other, while they
hold the interpreter lock.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from shared.durable import DIRECTORY_MODE
from shared.errors import Unavailable
from worker.storage.rows import manifest as store_manifest

TRIES = 20
_TABLE, _LOG = ".sst", ".log"
_COPIED = ("OPTIONS-", "IDENTITY", "rocksdict-config.json")


def make(store: Path, target: Path) -> None:
    """Make an image of the store in `target`, which must not exist. Raises Unavailable if the store's files change
    during each of TRIES copies, OSError."""
    target.mkdir(mode=DIRECTORY_MODE)
    for _ in range(TRIES):
        if _copy_once(store, target):
            return
        for path in target.iterdir():
            path.unlink()
    raise Unavailable(f"the files of the store {store} have changed each of {TRIES} times they were copied; try again")


def _copy_once(store: Path, target: Path) -> bool:
    """Copy the files. Returns False if they have changed meanwhile."""
    try:
        before = store_manifest.current(store)
        names = sorted(os.listdir(store))
        for name in names:
            if name.endswith(_TABLE):
                os.link(store / name, target / name)
            elif name.startswith(_COPIED):
                shutil.copyfile(store / name, target / name)
        for name in names:  # ascending, since only the last log takes more writes
            if name.endswith(_LOG):
                shutil.copyfile(store / name, target / name)
        manifest = store_manifest.path_of(store, before[0])
        with open(manifest, "rb") as file:
            content = file.read(before[1])
        (target / manifest.name).write_bytes(content)
        (target / "CURRENT").write_bytes((store / "CURRENT").read_bytes())
        return len(content) == before[1] and store_manifest.current(store) == before
    except (FileNotFoundError, ValueError):
        with suppress(FileNotFoundError):
            (target / "CURRENT").unlink()
        return False
