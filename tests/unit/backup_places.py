"""Backups of a small data directory, in a directory and in a bucket, for tests."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.backup import restoring, sending
from coordinator.backup.destination import open_place
from coordinator.log import sequencer
from shared import identity, manifest
from shared.manifest import Manifest
from tests.s3_server import S3Server, s3_server

OLD = Manifest("old-cluster", 2)


class Api:
    """A cluster with one view, which is a directory."""

    def __init__(self, view: Path) -> None:
        self.view = view
        self.name = "20261122T000000Z-0"
        self.released = 0
        self.holds: list[object] = []

    def call(self, method: str, path: str, body: Any = None, **parameters: str | int) -> Any:
        if method == "DELETE":
            self.released += 1
        if "hold" in parameters:
            self.holds.append(parameters["hold"])
        return {
            "data": {
                "view": self.name,
                "path": str(self.view),
                "momentMs": 1,
                "heldBackMs": 2.0,
                "warnings": ["a block is damaged"],
            }
        }

    def again(self) -> Api:
        return self

    def stream(self, target: str, **_: str | int) -> Iterator[bytes]:
        raise AssertionError("the view is on this host")


def nothing(what: str, done: int, total: int) -> None:
    """No progress is shown."""


def make_view(path: Path) -> Path:
    """What a cluster of two shards may have."""
    random_ = random.Random(7)
    files = {
        manifest.NAME: OLD.encode(),
        f"shards/{manifest.NAME}": OLD.encode(),
        "sequencer/state": sequencer.encode(sequencer.State(1, 500, None, 0, [(0, 0, 0, 0)], [])),
        "wal/0000/00000001.wal": random_.randbytes(3 << 20),
        "wal/0000/identity": identity.encode("old-cluster", identity.LOG, 0),
    }
    for shard in range(2):
        files[f"shards/{shard:04d}/identity"] = identity.encode("old-cluster", identity.SHARD, shard)
        files[f"shards/{shard:04d}/store/000001.sst"] = random_.randbytes(10_000)
        files[f"shards/{shard:04d}/store/CURRENT"] = b"MANIFEST-000005\n"
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def contents(path: Path) -> dict[str, bytes]:
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.fixture
def view(tmp_path: Path) -> Path:
    return make_view(tmp_path / "view")


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    pytest.importorskip("obstore")
    with s3_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server


@pytest.fixture(params=["directory", "bucket"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "directory":
        return str(tmp_path / "place")
    request.getfixturevalue("bucket")
    return "s3://bucket/some/prefix"


def back_up(view: Path, location: str, name: str = "20261122T000000Z-0") -> sending.FinishedBackup:
    api = Api(view)
    api.name = name
    sent = sending.backup(api, open_place(location, create=True), nothing)
    assert api.released == 1
    assert api.holds
    assert set(api.holds) == {f"{sending.RENEW_EVERY_S:g}s"}
    return sent


def restore(location: str, data: Path, name: str | None = None) -> Manifest:
    place = open_place(location)
    return restoring.restore(place, restoring.choose(place, name), data, nothing)


def names_in(location: str) -> list[str]:
    return [inventory.name for inventory in sending.inventories(open_place(location))]


def assert_restored(view: Path, data: Path) -> None:
    """All files are as in the view, except for those that make it a new cluster."""
    expected, restored = contents(view), contents(data)
    assert expected.keys() == restored.keys()
    different = {name for name in expected if expected[name] != restored[name]}
    assert different == {name for name in expected if name.endswith(("manifest.json", "identity", "sequencer/state"))}


def names_entries(location: str) -> list[Any]:
    return sending.inventories(open_place(location))[-1].files
