"""A data directory that was written by an earlier release, or by this one as it was, gives the answers it gave."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from coordinator import check
from shared.manifest import FORMAT
from tests.check import formats


def test_this_format_has_a_directory_that_is_kept() -> None:
    assert f"format-{FORMAT}.tar.xz" in {path.name for path in formats.kept()}, "python -m tests.check.formats"


@pytest.mark.parametrize("archive_path", formats.kept(), ids=lambda path: path.name)
def test_a_kept_directory_is_well_and_answers_as_it_did(archive_path: Path, tmp_path: Path) -> None:
    with tarfile.open(archive_path) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / formats.ANSWERS).read_bytes())
    report = check.check(tmp_path / "data")
    assert not report.damage, report.damage
    cluster = formats.of_format(tmp_path)
    try:
        for _ in range(2):
            cluster.start()
            assert formats.ask(cluster, [path for path in expected if path != "search"]) == expected
            cluster.stop()
    finally:
        cluster.kill()
