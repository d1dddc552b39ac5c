"""Bounds and shares of what storage keeps: cursors in one answer, caches, when it is time to gather or to seal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.messages.log import CursorMove
from shared.messages.series import FamilyMetadata
from shared.settings import Settings
from tests.unit.log_shard import OneShard
from tests.unit.series_shard import Quiet
from worker.logs import cursors, keeper
from worker.logs import part as part_module
from worker.series import metadata as metadata_module
from worker.series.blocks.archive import Archive
from worker.series.metadata import Metadata
from worker.storage.objects import LocalObjects
from worker.storage.rows.store import Store
from worker.storage.wal import losses
from worker.storage.wal.files import Files
from worker.storage.wal.losses import Loss
from worker.storage.wal.record import FILE_HEADER_BYTES
from worker.storage.wal.register import Listing, Register

TIMEOUT_S = 10.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    own = Store(tmp_path / "store")
    yield own
    own.close()


@pytest.fixture
def log_shard(tmp_path: Path) -> Iterator[OneShard]:
    own = OneShard(tmp_path / "log")
    yield own
    own.close()


# The log


def test_an_answer_has_a_bounded_number_of_a_cursors_positions(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    cursors.move(log_shard.part, "c", [CursorMove(b"%d" % n, n, None) for n in range(4)], lambda: None)
    cursors.move(log_shard.part, "d", [CursorMove(b"x", 9, None)], lambda: None)
    for bound, count in ((3, 3), (4, 4), (5, 4)):
        monkeypatch.setattr(cursors, "POSITIONS_MAX", bound)
        assert cursors.read(log_shard.part, "c", None) == [(b"%d" % n, n) for n in range(count)]


def test_fewer_records_make_a_gathering_due_where_keys_have_few_each(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part_module, "GATHER_RECORDS_MIN", 2)
    monkeypatch.setattr(part_module, "GATHER_ROWS", 4)
    assert log_shard.part._records_due == part_module.GATHER_RECORDS
    log_shard.append(0, [(b"k%d" % (n // 3), b"") for n in range(9)])
    log_shard.append(9, [(b"k%d" % n, b"") for n in range(11)])
    log_shard.part.gather()
    assert log_shard.part._records_due == 4 * 9 // 3
    assert not log_shard.part.is_large()
    log_shard.append(20, [(b"k", b"")])
    assert log_shard.part.is_large() and not log_shard.part.is_large(2)
    log_shard.part.gather()
    assert log_shard.part._records_due == 4


def test_an_overdue_gathering_is_done_by_the_next_append(log_shard: OneShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_module, "BEHIND_FACTOR", 2)
    log_shard.part._records_due = 2
    for group in range(4):
        log_shard.append(group, [(b"k", b"")])
        assert log_shard.part.view().gathered == 0
    log_shard.append(4, [(b"k", b"")])
    assert log_shard.part.view().gathered == 3
    assert len(log_shard.read()) == 5


def test_what_was_written_and_nobody_syncs_is_synced_soon_and_once(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = threading.Event()
    monkeypatch.setattr(log_shard.log, "sync", synced.set)
    own = log_shard.part.keeper
    own.written()
    assert synced.wait(TIMEOUT_S)
    synced.clear()
    own.wake()
    assert not synced.wait(3 * keeper.SYNC_AFTER_S)


def test_a_record_of_what_was_taken_back_is_kept_until_its_group_is_gathered(log_shard: OneShard) -> None:
    for group in range(3):
        log_shard.part.revoke(0, group, [])
    log_shard.part._closed = 1
    log_shard.part.gather()
    assert [group for group, _ in log_shard.part._memory.revocations] == [1, 2]


@pytest.mark.parametrize(
    ("is_behind", "is_large", "done"),
    [
        (False, False, []),
        (False, True, ["gather"]),
        (True, False, ["gather", "flush"]),
        (True, True, ["gather", "flush"]),
    ],
)
def test_a_log_is_flushed_for_the_sake_of_the_write_ahead_log_and_gathered_when_it_is_large(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch, is_behind: bool, is_large: bool, done: list[str]
) -> None:
    part, asked = log_shard.part, list[str]()
    with monkeypatch.context() as patch:
        patch.setattr(part.wal, "is_behind", lambda: is_behind)
        patch.setattr(part, "is_large", lambda times=1: is_large)
        patch.setattr(part, "gather", lambda: asked.append("gather"))
        patch.setattr(part, "flush", lambda: asked.append("flush"))
        part.keep_up()
    assert asked == done


@pytest.mark.parametrize(("bound", "kept"), [(1, {2}), (2, {1, 2}), (3, {0, 1, 2})])
def test_so_many_revoked_groups_are_remembered_the_latest(
    log_shard: OneShard, monkeypatch: pytest.MonkeyPatch, bound: int, kept: set[int]
) -> None:
    monkeypatch.setattr(part_module, "REVOKED_MAX", bound)
    for group in range(3):
        log_shard.part.revoke(0, group, [])
    assert {group for group in range(3) if log_shard.append(group, [(b"k", b"")], closed=0)} == kept


# The write-ahead log


def test_what_was_set_aside_is_known_beside_files_that_were_not_finished(tmp_path: Path) -> None:
    first, second = (Loss(f"wal/{name}", 1, 5, "is damaged", ((0, 1),)) for name in ("a", "b"))
    losses.remember(tmp_path / "a", [first], [b"bytes"])
    losses.remember(tmp_path / "b", [second], [])
    losses.remember(tmp_path / "b", [second], [])
    (tmp_path / "a.damaged.new").write_bytes(b"begun")
    whole = sorted(tmp_path.glob("b*"))[0]
    (tmp_path / "c.damaged").write_bytes(whole.read_bytes().replace(b"5", b"6", 1))
    assert [own.losses for own in losses.known(tmp_path)][:2] == [(first,), (second,)]
    [_, _, unknown] = losses.known(tmp_path)
    [loss] = unknown.losses
    assert "set aside as a whole" in loss.what and loss.streams is None and loss.concerns(5, 2)
    assert (loss.offset, loss.end) == (0, len(whole.read_bytes()))
    assert [first.concerns(*key) for key in ((0, 1), (1, 1), (0, 2))] == [True, False, False]
    assert sorted(tmp_path.glob("a*"))[0].read_bytes().endswith(b"\nbytes")


def test_two_files_are_kept_to_be_used_again_if_they_are_whole(tmp_path: Path) -> None:
    own = Files(tmp_path, 1000, Register(tmp_path, Listing(1, {})), 1, lambda: None)
    try:
        own._spares.clear()
        paths = [tmp_path / f"{number:08d}.wal" for number in range(5, 10)]
        for path, size in zip(paths, (999, 1000, 1000, 1000, 0), strict=True):
            path.write_bytes(b"x" * size)
            own.keep_spare(path)
        assert list(own._spares) == paths[1:3]
        assert [path.exists() for path in paths] == [False, True, True, False, False]
        head = paths[1].read_bytes()[: FILE_HEADER_BYTES + 1]
        assert head == bytes(FILE_HEADER_BYTES) + b"x", "known for what it is also when the list is lost"
    finally:
        own.close()


# The series


@pytest.mark.parametrize(
    ("now_ms", "before_ms"), [(124, -1000), (125, 0), (1124, 0), (1125, 1000), (2124, 1000), (2125, 2000)]
)
def test_a_window_is_sealed_an_eighth_of_its_length_after_its_end(tmp_path: Path, now_ms: int, before_ms: int) -> None:
    shard = Quiet(tmp_path)
    assert shard.part._upkeep.sealing._rules.before_ms(now_ms) == before_ms
    shard.close()


def test_each_shard_has_its_share_of_the_cache_of_decoded_blocks(store: Store, tmp_path: Path) -> None:
    archive = Archive(store, Settings(block_cache_bytes=1000, shards=4), LocalObjects(tmp_path))
    archive.cache.put("a", 1, 250)
    assert archive.cache.size_bytes == 250
    archive.cache.put("b", 2, 251)
    assert (archive.cache.get("a"), archive.cache.get("b")) == (1, None)


def said(family: str, text: str = "") -> FamilyMetadata:
    return FamilyMetadata(family, "counter", text, "")


def test_what_has_no_room_leaves_out_itself_and_nothing_behind_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "FAMILIES_MAX", 2)
    own = Metadata(store)
    assert own.put([said("a"), said("a"), said("b"), said("c"), said("a", "more"), said("d"), said("b")]) == 2
    assert [(entry.family, entry.help) for entry in own.find("", 0)[0]] == [("a", ""), ("a", "more"), ("b", "")]
    monkeypatch.setattr(metadata_module, "BYTES_MAX", own._bytes + 5)
    assert own.put([said("b", "x" * 9), said("b", "xyz"), said("a", "z" * 9)]) == 2
    again = Metadata(store)
    again.load()
    assert (again._bytes, again.find("b", 0)) == (own._bytes, ([said("b"), said("b", "xyz")], False))
    assert own.find("", 1) == ([said("a"), said("a", "more")], True)
    assert own.find("", 2)[1] is False and own.find("z", 0) == ([], False)
