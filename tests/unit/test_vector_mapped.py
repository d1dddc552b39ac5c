"""Vectors whose exact components lie in a file, and what then takes memory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from shared.errors import Unavailable
from shared.messages.vectors import Collection
from tests.unit.vector_shard import OneShard, clustered
from worker.vectors.graph import GRAPH_BYTES, node_bytes
from worker.vectors.mapped_rows import MappedRows
from worker.vectors.table import Table


def test_rows_stay_when_the_file_grows(tmp_path: Path) -> None:
    rows = MappedRows(tmp_path, 3)
    before = rows.array(2)
    before[:] = [[1, 2, 3], [4, 5, 6]]
    after = rows.array(1000)
    after[999] = 7
    assert after[:2].tolist() == before.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert not after[2:999].any()
    before[0] = 8
    assert after[0].tolist() == [8, 8, 8]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("storage", "directory", "components"),
    [("f32", True, 4 * 64), ("f16", True, 2 * 64), ("i8", True, 0), ("b1", True, 0), ("i8", False, 2 * 64)],
)
def test_what_lies_in_a_file_takes_no_memory(tmp_path: Path, storage: str, directory: bool, components: int) -> None:
    table = Table(Collection(1, "c", 64, "cosine", storage), directory=tmp_path if directory else None)
    empty = table.memory_bytes
    vectors = clustered(100, 64)
    table.append([b"%09d" % row for row in range(100)], vectors, np.arange(100, dtype=np.uint64), 0, [b""] * 100, ())
    ids = 100 * (9 + 8) + 4 * (256 - 64)
    codes = 100 * (64 + 3 * 8)  # in memory while the rows are not in the graph
    assert table.memory_bytes - empty == 100 * (components + 15) + ids + codes
    compared = table.view.vectors[:100].astype(np.float32)
    np.testing.assert_allclose(compared, vectors / np.linalg.norm(vectors, axis=1, keepdims=True), atol=2e-3)


def test_a_bit_of_a_component_is_in_the_graph() -> None:
    sizes = [node_bytes(100, "cosine", storage) - GRAPH_BYTES for storage in ("f32", "f16", "i8", "b1")]
    assert sizes == [200, 200, 100, 13]


def test_a_full_disk_refuses_the_write_before_the_store_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = OneShard(tmp_path)
    collection = Collection(5, "small", 16, "cosine", "i8")
    try:
        shard.write(["a"], clustered(1, 16), into=collection)

        def full(descriptor: int, offset: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", full)
        with pytest.raises(Unavailable, match=r"bytes for vectors have no room in .*No space left"):
            shard.write([f"v{row}" for row in range(1000)], clustered(1000, 16), into=collection)
        monkeypatch.undo()
        assert shard.ids(clustered(1, 16)[0], 10, collection) == ["a"]
        shard.reopen()
        assert shard.ids(clustered(1, 16)[0], 10, collection) == ["a"]
        shard.write([f"v{row}" for row in range(1000)], clustered(1000, 16), into=collection)
        assert shard.vectors.counts()["vectors"] == 1001
    finally:
        shard.close()
