"""The secured cluster of the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.harness.cluster import Cluster
from tests.cluster.secured import (
    PASSWORD,
    TOKENS,
    Files,
    hashed,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("secured"))
    headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    made.write_web(rest=f"{headers}basic_auth_users:\n  alice: {hashed(PASSWORD)}\n")
    made.write_tokens(TOKENS)
    return made


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[Cluster]:
    running = files.cluster(TRIPTYCH_LOG_FOLLOWERS_MAX="300").start()
    yield running
    running.stop()
