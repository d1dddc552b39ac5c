"""Starts that cannot be: what they say, and with which code they end."""

from __future__ import annotations

import socket

import pytest

from shared import manifest
from shared.control import LocalControl
from shared.settings import Settings

WITHIN_S = 30.0


def refusal(module, cluster):
    """The one line a refused start prints."""
    assert cluster._spawn(module).wait(WITHIN_S) == 1
    lines = cluster.log(module).strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_port_in_use_is_one_line_and_exit_code_1(new_cluster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        cluster = new_cluster()
        cluster.port = taken.getsockname()[1]
        line = refusal("coordinator", cluster)
    assert f"TRIPTYCH_LISTEN is 127.0.0.1:{cluster.port}, which cannot be bound" in line


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_another_shard_count_is_one_line_and_exit_code_1(new_cluster, module):
    cluster = new_cluster(shards=3)
    data = cluster.directory / "data"
    manifest.open_manifest(Settings(data=data, shards=4), LocalControl(data))
    assert "TRIPTYCH_SHARDS is 3, but" in refusal(module, cluster)


@pytest.mark.parametrize("module", ["coordinator", "worker"])
def test_a_bad_setting_is_one_line_and_exit_code_1(new_cluster, module):
    cluster = new_cluster(settings={"TRIPTYCH_QUERY_TIMEOUT": "soon"})
    assert "TRIPTYCH_QUERY_TIMEOUT is 'soon'" in refusal(module, cluster)


def test_a_data_directory_in_use_is_refused_and_its_cluster_works_on(cluster, new_cluster):
    other = new_cluster(settings={"TRIPTYCH_DATA": str(cluster.directory / "data")})
    assert "which another cluster is using" in refusal("coordinator", other)
    assert "which another cluster is using" in refusal("worker", other)
    assert cluster.get("/-/ready").status == 200
