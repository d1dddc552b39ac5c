"""When a store merges the files of level 0."""

from __future__ import annotations

import time
from pathlib import Path

from worker.storage.rows.store import Store

FILES = 8
"""More than RocksDB merges by default, and fewer than are merged for the log."""
MERGED_WITHIN_S = 20.0


def _level_0_files(store: Store, family: str) -> int:
    return int(store._families[family].property_int_value("rocksdb.num-files-at-level0"))


def test_the_files_of_the_log_are_merged_later_than_those_of_other_families(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    try:
        for number in range(FILES):
            for family in ("log", "vectors"):
                batch = store.batch()
                for key in range(10):  # the same keys in each file, so that no file can just be moved
                    batch.put(family, b"%d" % key, b"%d" % number)
                store.write(batch)
                store.flush(family)
        give_up = time.monotonic() + MERGED_WITHIN_S
        while _level_0_files(store, "vectors") >= FILES / 2:
            assert time.monotonic() < give_up, "the files of vectors are not merged"
            time.sleep(0.01)
        assert _level_0_files(store, "log") == FILES
    finally:
        store.close()
