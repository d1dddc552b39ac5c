"""A release of the write-ahead log that a crash undoes: records that were released come again, and change nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shared.promql.ast import Matcher
from tests.unit.log_shard import OneShard
from tests.unit.series_shard import Quiet
from worker.storage.wal import files, reading, register
from worker.storage.wal.log import WriteAheadLog


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_BYTES", 4096)
    monkeypatch.setattr(files, "GROWTH", 1)


class Former:
    """All files a log ever had, as they were when they were last in use."""

    def __init__(self, log: WriteAheadLog, kept: Path) -> None:
        self._log = log
        self._kept = kept
        kept.mkdir()

    def keep(self) -> None:
        for content in reading.survey(self._log.directory).used:
            if content.records:
                shutil.copy(content.path, self._kept)
        log_files = self._log._files
        assert log_files is not None
        log_files.prepare()  # a log grows its last file as long as the next one is not ready

    def come_back(self, image: Path, count: int) -> None:
        """Have the first `count` of them in use again in the image of the log."""
        listing = register.read(image / register.NAME)
        assert listing is not None
        ends = dict(listing.ends)
        for path in reading.paths_of(self._kept)[:count]:
            if reading.number_of(path) not in ends:
                shutil.copy(path, image)
                ends[reading.number_of(path)] = 0
        register.Register(image, register.Listing(listing.highest, ends, listing.changes)).close()

    def __len__(self) -> int:
        return len(reading.paths_of(self._kept))


VALUE = bytes(300)


@pytest.mark.parametrize("back", [1, 2, 4, 99])
def test_groups_that_were_released_and_come_again_change_nothing(tmp_path: Path, back: int) -> None:
    shard = OneShard(tmp_path / "shard")
    former = Former(shard.log, tmp_path / "former")
    number = 0

    def append(segment: int) -> int:
        nonlocal number
        start, number = number, number + 4
        batches = [(b"k%d" % n, b"%d" % n + VALUE) for n in range(start, start + 2)]
        more = [(b"k%d" % n, b"%d" % n + VALUE) for n in range(start + 2, start + 4)]
        assert shard.append(start, batches, more, segment=segment, closed=start, producer="p") == {}
        former.keep()
        return start

    for segment in (0, 1, 2):
        for step in range(12):
            start = append(segment)
            if step == 3:
                shard.part.revoke(segment, start, [(start, start + 2)])  # not gathered yet
            if step % 5 == 4:
                shard.part.gather()
                shard.part.revoke(segment, start - 8, [(start - 6, start - 4)])  # gathered
        former.keep()
        shard.part.gather()
        shard.part.flush()
    shard.part.drop(1, 48)
    former.keep()
    before = shard.read(), shard.part.segments(), shard.part.producer_answers("p"), shard.part.counts()
    assert before[0]
    shard.close()
    assert len(former) > 6
    former.come_back(tmp_path / "shard" / "wal", back)
    again = OneShard(tmp_path / "shard")
    assert (again.read(), again.part.segments(), again.part.producer_answers("p"), again.part.counts()) == before
    assert again.append(number, [(b"k", b"v")], segment=2) == {}
    assert [row[0] for row in again.read()] == [*(row[0] for row in before[0]), number]
    again.close()


@pytest.mark.parametrize("back", [1, 2, 4, 99])
def test_samples_that_were_released_and_come_again_change_nothing(tmp_path: Path, back: int) -> None:
    shard = Quiet(tmp_path / "shard")
    former = Former(shard.log, tmp_path / "former")

    def write(first: int, value: float) -> None:
        for job in ("a", "b"):
            own = [(first + n, value + n) for n in range(40)]
            shard.write([({"__name__": "m", "job": job}, own)])
        former.keep()

    for round_ in range(12):
        write(0, float(round_))  # over and over at the same times
        write(100 * round_, 1000.0)
        shard.part.delete([[Matcher("job", "=", "a")]], 100 * round_, 100 * round_ + 20, 10.0)
        former.keep()
        if round_ % 2:
            shard.seal()
    shard.part.delete([[Matcher("job", "=", "b")]], 0, 50, 10.0)
    former.keep()
    shard.seal()
    write(2000, 7.0)  # stays in the journal
    before = shard.samples()
    shard.close()
    former.come_back(tmp_path / "shard" / "wal", back)
    assert len(former) > 3
    shard.open()
    assert shard.samples() == before
    shard.close()
