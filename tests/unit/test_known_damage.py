"""Damage that is found once is known until it is repaired or accepted, whatever is released or restarted meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from shared.settings import Settings
from tests.unit.series_shard import A, Quiet, m
from worker.series.journal import Deletion, Written
from worker.services import Services
from worker.shard import Shard
from worker.storage.rows import known_damage
from worker.storage.rows.store import StoreDamaged
from worker.storage.wal.log import SERIES, WriteAheadLog


@pytest.fixture
def series(tmp_path: Path) -> Iterator[Quiet]:
    opened = Quiet(tmp_path)
    opened.write([(m(job="a"), [(1, 1.0)])])
    yield opened
    opened.close()


def release(series: Quiet) -> None:
    """Have the journal's records sealed, and their file given back."""
    series.write([(m(job="a"), [(2, 2.0)])])
    series.reopen()
    series.seal()
    series.reopen()
    assert not series.part._damage.texts("series"), "the records themselves are gone"


def said(series: Quiet) -> list[str]:
    """What a start says of the write-ahead log, as `Shard` passes it on."""
    return [text for area, text in series.log.losses_of(0) if area == SERIES]


def set_aside(series: Quiet) -> list[Path]:
    return sorted((series.path / "wal").glob("*.damaged*"))


def test_record_that_cannot_be_decoded_is_said_until_what_was_set_aside_is_deleted(series: Quiet) -> None:
    bad = b"\x01\x63" + bytes(30)
    series.part.journal._wal.write([bad])
    release(series)
    [text] = said(series)
    assert "1 records of samples cannot be read" in text and "version 99" in text
    [file] = set_aside(series)
    assert file.read_bytes().endswith(bad)
    series.close()
    file.unlink()
    series.open()
    assert said(series) == []
    assert series.samples() == {A: [(1, 1.0), (2, 2.0)]}


def test_record_of_unknown_series_is_said_until_what_was_set_aside_is_deleted(series: Quiet) -> None:
    one = np.ones(2, dtype=np.int64)
    series.part.journal.write(Written(np.array([0, 7]), one, one * 5, one * 2.5), durable=True)
    release(series)
    [text] = said(series)
    assert "1 samples of series the store does not have, ids up to 7" in text
    [file] = set_aside(series)
    series.close()
    file.unlink()
    series.open()
    assert said(series) == []


def test_deletion_of_unknown_series_lacks_nothing(series: Quiet) -> None:
    series.part.journal.write(Deletion(np.array([7]), 0, 10), durable=True)
    series.reopen()
    assert series.part._damage.texts("series") == []
    assert set_aside(series) == []


def test_what_is_found_at_each_start_is_set_aside_once(series: Quiet) -> None:
    series.part.journal._wal.write([b"\x01\x63" + bytes(30)])
    for _ in range(3):
        series.reopen()  # by which the record gets another place
        [text] = said(series)
        assert series.part._damage.texts("series") == [text]
    assert len(set_aside(series)) == 1


class Data:
    """A data directory of one shard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = path / "shards" / "0000" / "store"

    def open(self) -> Shard:
        self.log = WriteAheadLog(self.path / "wal" / "0000")
        try:
            return Shard(0, Services.build(Settings(data=self.path, shards=1, workers=1), self.log))
        except BaseException:
            self.log.close()
            raise

    def close(self, shard: Shard) -> None:
        shard.close()
        self.log.close()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Its store has rows that no start reads."""
    made = Data(tmp_path)
    shard = made.open()
    batch = shard.store.batch()
    for number in range(2000):
        batch.put("meta", b"other/%06d" % number, b"%d" % number * 20)
    shard.store.write(batch, durable=True)
    made.close(shard)
    return made


def flip(data: Data) -> None:
    table = max(data.store.glob("*.sst"), key=lambda path: path.stat().st_size)
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0xFF
    table.write_bytes(content)


def meet_damage(data: Data) -> None:
    shard = data.open()
    with pytest.raises(StoreDamaged):
        list(shard.store.scan("meta"))
    data.close(shard)


def test_store_found_damaged_is_checked_before_it_serves_again(data: Data) -> None:
    flip(data)
    meet_damage(data)
    assert known_damage.path_of(data.store).exists()
    for _ in range(2):
        with pytest.raises(StoreDamaged, match=r"family 'meta' of the store .*\.sst"):
            data.open()


def test_store_that_was_found_damaged_and_is_restored_serves_and_is_forgotten(data: Data) -> None:
    flip(data)
    meet_damage(data)
    flip(data)
    data.close(data.open())
    assert not known_damage.path_of(data.store).exists()


def test_store_whose_damage_is_accepted_serves(data: Data) -> None:
    flip(data)
    meet_damage(data)
    known_damage.path_of(data.store).unlink()
    data.close(data.open())
