"""Clusters for tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One cluster of 4 shards in 2 workers for all tests that leave it as unharmed as they found it."""
    running = ForkedCluster(tmp_path_factory.mktemp("cluster")).start()
    yield running
    running.stop()


@pytest.fixture
def kind_of_cluster() -> type[Cluster]:
    """What `new_cluster` makes."""
    return ForkedCluster


@pytest.fixture
def new_cluster(tmp_path: Path, kind_of_cluster: type[Cluster]) -> Iterator[Callable[..., Cluster]]:
    """Makes clusters of a test's own (`new_cluster(shards=3, workers=1, settings={…})`), not yet started."""
    made: list[Cluster] = []

    def make(**options: Any) -> Cluster:
        directory = tmp_path / f"cluster-{len(made)}"
        directory.mkdir()
        made.append(kind_of_cluster(directory, **options))
        return made[-1]

    yield make
    for one in made:
        one.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """The directory of a file system of 96 MB."""
    path = tmp_path / "disk"
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(path)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("mounting a small file system takes privileges")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)
