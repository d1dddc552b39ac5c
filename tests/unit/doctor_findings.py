"""What the tests of `triptych doctor` share."""

from __future__ import annotations

from pathlib import Path

from coordinator.doctor.finding import Finding
from shared.manifest import Manifest


def level(finding: Finding | None) -> str:
    assert finding is not None
    assert finding.seen
    assert bool(finding.right) == (finding.level != "ok")
    return finding.level


def data_directory(parent: Path) -> Path:
    """A data directory as it is before the first write."""
    path = parent / "data"
    path.mkdir(mode=0o700)
    (path / "shards" / "0000").mkdir(parents=True)
    for place in (path / "shards", path / "shards" / "0000"):
        place.chmod(0o700)
    for file in (path / "manifest.json", path / "shards" / "manifest.json"):
        file.write_bytes(Manifest("c" * 32, 1).encode())
        file.chmod(0o600)
    return path
