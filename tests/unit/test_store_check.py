"""The offline check of a store: it names what is damaged, and changes nothing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.test_store_damage import Rows, fill, flip
from worker.storage.rows.check import check, opened
from worker.storage.rows.store import FAMILIES, Store, StoreLocked


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A store with tables and, as a kill leaves it, a log."""
    path = tmp_path_factory.mktemp("check") / "running" / "store"
    store = Store(path)
    rows: Rows = {family: {} for family in FAMILIES}
    fill(store, rows, 0, 500, random.Random(1))
    store.flush("log")
    store.flush("vectors")
    fill(store, rows, 500, 20, random.Random(2))
    store.sync()
    shutil.copytree(path.parent, path.parents[1] / "killed")
    store.close()
    return path.parents[1] / "killed"


@pytest.fixture
def path(whole, tmp_path) -> Path:
    shutil.copytree(whole, tmp_path / "killed")
    return tmp_path / "killed" / "store"


def content(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.parent.rglob("*") if file.is_file()}


def test_a_store_that_is_well_is_said_to_be_and_not_changed(path):
    before = content(path)
    assert check(path) == []
    with opened(path) as reader:
        assert len(list(reader.scan("log"))) == 520
    assert content(path) == before
    reopened = Store(path)
    assert len(list(reopened.keys("log"))) == 520
    reopened.close()


def test_each_damaged_table_is_named_with_its_family(path):
    tables = sorted(path.glob("*.sst"))
    assert len(tables) == 2
    for table in tables:
        flip(table, table.stat().st_size // 2, 4)
    before = content(path)
    texts = check(path)
    assert content(path) == before
    for table in tables:
        assert any(str(table) in text for text in texts)
    assert {text.split("'")[1] for text in texts} == {"log", "vectors"}


def test_a_log_that_lost_what_was_synced_is_damage(path):
    log = max(path.glob("*.log"))
    os.truncate(log, log.stat().st_size // 2)
    [text] = check(path)
    assert "ends at write" in text


def test_a_manifest_that_cannot_be_read_is_damage(path):
    [manifest] = path.glob("MANIFEST-*")
    flip(manifest, 20, 1)
    [text] = check(path)
    assert "MANIFEST" in text


def test_a_store_in_use_is_not_checked(path):
    script = (
        "import sys; from pathlib import Path; from worker.storage.rows.store import Store;"
        "s = Store(Path(sys.argv[1])); print('open', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match="stop the service first"):
            check(path)
    finally:
        owner.communicate("")
