"""A data directory that was written by an earlier release, or by this one as it was, gives the answers it gave."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from coordinator import check
from shared.manifest import FORMAT
from tests.check import formats, kinds
from tests.earlier_format import formats_of
from worker import check as worker_check
from worker.series import journal
from worker.series.blocks import sections
from worker.series.sample_record import Written
from worker.series.series_record import SeriesRecord
from worker.storage.wal import layout, reading
from worker.storage.wal.log import SERIES

KEPT = pytest.mark.parametrize("archive_path", formats.kept(), ids=lambda path: path.name)


def unpacked(archive_path: Path, directory: Path) -> Path:
    """The data directory of the archive."""
    with tarfile.open(archive_path) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            archive.extraction_filter = staticmethod(tarfile.data_filter)
        archive.extractall(directory)
    return directory / "data"


def test_each_format_has_a_directory_that_is_kept() -> None:
    kept = {path.name for path in formats.kept()}
    assert {f"format-{number}.tar.xz" for number in range(1, FORMAT + 1)} <= kept, "python -m tests.check.formats"


@KEPT
def test_a_kept_directory_is_well_and_answers_as_it_did(archive_path: Path, tmp_path: Path) -> None:
    data = unpacked(archive_path, tmp_path)
    before = int(archive_path.name.split("-")[1].split(".")[0])
    expected = json.loads((tmp_path / formats.ANSWERS).read_bytes())
    assert formats_of(data) == (before, before)
    report = check.check(data)
    assert not report.damage, report.damage
    cluster = formats.of_format(tmp_path)
    try:
        for _ in range(2):
            cluster.start()
            assert formats.ask(cluster, [path for path in expected if path != "search"]) == expected
            assert formats_of(data) == (FORMAT, FORMAT)
            cluster.stop()
        said = [cluster.log(module).count("data directory upgraded") for module in ("coordinator", "worker")]
        assert sum(said) == FORMAT - before, "one of the two processes upgrades the directory, once"
        assert not check.check(data).damage
    finally:
        cluster.kill()


@KEPT
def test_a_kept_directory_takes_what_this_format_has_a_form_for(archive_path: Path, tmp_path: Path) -> None:
    unpacked(archive_path, tmp_path)
    cluster = formats.of_format(tmp_path)
    try:
        cluster.start()
        kinds.write_one_histogram(cluster, "new", 1_000)
        cluster.kill()
        cluster.start()
        answer = cluster.get("/api/v1/query?query=histogram_count(new)&time=1").json()
        assert [one["value"][1] for one in answer["data"]["result"]] == ["13"]
    finally:
        cluster.kill()


def test_the_kept_directory_of_format_2_has_histograms_in_blocks_and_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = unpacked(Path(formats.__file__).with_name("format-2.tar.xz"), tmp_path)
    split, decode = sections._split, journal.decode
    in_blocks, in_log = set(), set()

    def seen_in_block(chunk: bytes) -> tuple[bytes, bytes, bytes]:
        body, start_times, histograms = split(chunk)
        in_blocks.update({"start times"} if start_times else (), {"histograms"} if histograms else ())
        return body, start_times, histograms

    def seen_in_log(payload: bytes) -> tuple[int, journal.Record]:
        sequence, record = decode(payload)
        in_log.add(isinstance(record, Written) and record.is_extended)
        return sequence, record

    monkeypatch.setattr(sections, "_split", seen_in_block)
    monkeypatch.setattr(journal, "decode", seen_in_log)
    assert not [found for found in worker_check.check(data).findings if found.is_damage]
    assert in_blocks == {"start times", "histograms"}
    assert in_log == {True, False}


def test_the_kept_directory_of_format_5_has_labels_of_new_series_in_the_log(tmp_path: Path) -> None:
    data = unpacked(Path(formats.__file__).with_name("format-5.tar.xz"), tmp_path)
    records = [
        journal.decode(payload)[1]
        for directory in layout.directories(data / layout.NAME)
        for content in reading.survey(directory).used
        for header, payload in content.records
        if header.area == SERIES
    ]
    assert any(isinstance(record, SeriesRecord) for record in records)
