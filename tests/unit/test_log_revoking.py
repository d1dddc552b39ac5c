"""What a shard's log refuses or takes back: revoked batches, groups of an earlier coordinator, and late ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.errors import Unavailable
from shared.hashing import hash64
from shared.log.blocks import block_of
from shared.messages.log import Batch
from tests.unit.log_shard import OneShard, named
from worker.logs import writing
from worker.logs.messages import Message


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[OneShard]:
    made = OneShard(tmp_path / "shard")
    yield made
    made.close()


def test_a_taking_back_that_an_earlier_coordinator_had_asked_for_removes_nothing(shard: OneShard) -> None:
    """The next one has found the batch whole and acknowledged it: its own taking back counts, a late one does not."""
    shard.append(0, named(4))
    shard.part.recover(0, 0, 0, life=10)
    with pytest.raises(Unavailable, match="earlier life of the coordinator"):
        shard.part.revoke(0, 0, [(0, 4)], life=9)
    assert len(shard.read()) == 4
    shard.part.revoke(0, 0, [(0, 4)], life=10)
    assert shard.read() == []


@pytest.mark.parametrize("gathered", ["", "gathered", "flushed"])
def test_a_revoked_batch_is_gone_also_after_a_crash(shard: OneShard, tmp_path: Path, gathered: str) -> None:
    shard.append(0, named(4), named(3), producer="p")
    shard.append(7, named(2), closed=9)
    if gathered:
        shard.part.gather()
    if gathered == "flushed":
        shard.part.flush()
    shard.part.revoke(0, 0, [(4, 7)])
    expected = [0, 1, 2, 3, 7, 8]
    assert [number for number, _, _ in shard.read()] == expected
    assert shard.part.producer_answers("p") == [(0, 0, 4)]
    assert shard.part.counts() == {"records": 6}
    for number in range(2):
        after = shard.crashed_into(tmp_path / f"after-{number}")
        assert [number for number, _, _ in after.read()] == expected
        assert after.part.producer_answers("p") == [(0, 0, 4)]
        assert after.part.segments() == shard.part.segments()
        assert [group.batches for group in after.part.recover(0, 0, 0)[2] if group.group == 0] == [
            (Batch(0, 4, (0,), "p", 0),)
        ]
        after.close()
        shard.part.gather()


def test_an_append_of_an_earlier_coordinator_is_refused_also_with_the_numbers_of_the_next(shard: OneShard) -> None:
    """Both give the same numbers where the state was lost before any shard had a record."""
    shard.part.recover(0, 0, 0, life=10)
    block = block_of([(hash64(b"k"), 0, b"k", b"v")])
    message = Message(0, 0, 0, 0, (Batch(0, 1, (0,)),), block)
    assert "given up" in writing.append({0: (shard.part, message)}, durable=True, life=9)[0]
    assert shard.read() == []
    assert writing.append({0: (shard.part, message)}, durable=True, life=10) == {}
    assert shard.read() == [(0, b"k", b"v")]


def test_a_revoked_group_is_refused_when_it_comes_late(shard: OneShard, tmp_path: Path) -> None:
    shard.part.revoke(0, 5, [(5, 8)])
    assert "given up" in shard.append(5, named(3))[0]
    assert shard.append(8, named(3), closed=5) == {}
    assert [number for number, _, _ in shard.read()] == [8, 9, 10]


def test_what_a_failed_write_left_behind_is_revoked_too(
    shard: OneShard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write reached the file and failed all the same; the revocation comes behind it."""
    shard.append(0, named(2))
    write = shard.log.write

    def failing(records: Any) -> list[int]:
        write(records)
        raise Unavailable("the disk is full")

    monkeypatch.setattr(shard.log, "write", failing)
    assert shard.append(2, named(2)) == {0: "the disk is full"}
    monkeypatch.undo()
    assert [number for number, _, _ in shard.read()] == [0, 1]
    shard.part.revoke(0, 2, [(2, 4)])
    shard.append(4, named(1))
    after = shard.crashed_into(tmp_path / "after")
    assert [number for number, _, _ in after.read()] == [0, 1, 4]
    after.close()


def test_a_whole_group_that_was_revoked_before_it_was_decided_stays_gone(shard: OneShard, tmp_path: Path) -> None:
    """The log keeps what was taken back as long as it keeps what it was taken from."""
    shard.append(0, named(2))
    shard.append(2, named(2), closed=0)
    shard.append(4, named(2), closed=2)
    shard.part.revoke(0, 2, [(2, 4)])
    shard.part.gather()
    shard.part.flush()
    assert shard.part._memory.first_position is not None
    after = shard.crashed_into(tmp_path / "after")
    assert [number for number, _, _ in after.read()] == [0, 1, 4, 5]
    assert [group.group for group in after.part.recover(0, 0, 0)[2]] == [4, 0]
    after.close()
