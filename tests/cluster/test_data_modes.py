"""Other users of the machine have no access to the data, nor to what processes leave behind."""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from loadtest.harness.cluster import Cluster
from loadtest.harness.remote_write_bodies import HEADERS, compressed

LISTINGS_MAX = 100


def write_everywhere(cluster: Cluster) -> None:
    series = compressed([({"__name__": "modes"}, [(1_700_000_000_000 + 1000 * n, 1.0) for n in range(3000)])])
    assert cluster.request("POST", "/api/v1/write", series, HEADERS).status == 204
    record = {"records": [{"key": "aw==", "value": "dg=="}], "awaitDurable": True}
    assert cluster.post_json("/api/v1/log/append", record).status == 200
    vectors = {"upsertVectors": [{"id": "modes", "attributes": {"vector": [1, 2], "kind": "text"}}]}
    assert cluster.post_json("/api/v1/vector/write", vectors).status == 200


def open_to_others(data: Path) -> list[str]:
    """Everything in the data directory that users other than its owner have any access to."""
    modes = modes_within(data)
    assert len(modes) > 30
    return [f"{path} {stat.filemode(mode)}" for path, mode in modes.items() if mode & 0o077]


def modes_within(directory: Path) -> dict[Path, int]:
    for _ in range(LISTINGS_MAX):
        with suppress(FileNotFoundError):  # a file of the index that was just written has got another name
            return {path: path.lstat().st_mode for path in [directory, *directory.rglob("*")]}
    raise AssertionError(f"something vanished in each of {LISTINGS_MAX} listings of {directory}")


def test_all_files_sockets_and_directories_are_the_owners_alone(new_cluster: Callable[..., Cluster]) -> None:
    settings = {"TRIPTYCH_HEAD_BYTES": "4096", "TRIPTYCH_VECTOR_SNAPSHOT": "10ms"}
    cluster = new_cluster(shards=1, workers=1, settings=settings)
    data = cluster.directory / "data"
    data.mkdir(mode=0o755)
    cluster.start()
    write_everywhere(cluster)
    places = [data, Path(tempfile.gettempdir())]  # of the sockets: the second one if the path of the first is too long
    assert any(stat.S_ISSOCK(path.lstat().st_mode) for place in places for path in place.glob("*/*.sock"))
    assert open_to_others(data) == []
    cluster.stop()
    assert open_to_others(data) == []
    widened = [data / name for name in ("", "shards", "shards/0000", "run") if (data / name).exists()]
    assert len(widened) >= 3  # the directory of the sockets may be elsewhere
    for directory in widened:
        directory.chmod(0o755)
    cluster.start()
    (data / "shards/0000").chmod(0o700)  # closed with the directories above it
    assert open_to_others(data) == []
    assert f"closed now directory={data} mode=0755" in cluster.log("worker") + cluster.log("coordinator")
    cluster.stop()
