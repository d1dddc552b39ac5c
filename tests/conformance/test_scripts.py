"""promqltest scripts: none of the project's own may fail, and no script may pass fewer evaluations than recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance import suite
from tests.conformance.__main__ import CLUSTER_SHARDS
from tests.conformance.cluster_backend import ClusterBackend
from tests.conformance.memory_backend import MemoryBackend
from tests.conformance.runner import Backend
from tests.forked_cluster import ForkedCluster

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module", params=["memory", "cluster"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    if request.param == "memory":
        yield MemoryBackend()
        return
    running = ForkedCluster(tmp_path_factory.mktemp("conformance"), shards=CLUSTER_SHARDS).start()
    over_http = ClusterBackend(running.port)
    yield over_http
    over_http.close()
    running.stop()


def _failures(path: Path, backend: Backend) -> tuple[int, list[str]]:
    outcomes = suite.run([path], backend)[suite.script_name(path)]
    failures = [f"{path.name}:{o.line}: {o.query}\n    {o.detail}" for o in outcomes if o.verdict == "failed"]
    return sum(o.verdict == "passed" for o in outcomes), failures


@pytest.mark.parametrize("path", sorted(suite.OWN_SCRIPTS.glob("*.test")), ids=lambda path: path.stem)
def test_every_evaluation_of_own_script_is_as_expected(path: Path, backend: Backend) -> None:
    passed, failures = _failures(path, backend)

    assert not failures, "\n".join(failures)
    assert passed >= suite.recorded(backend.name).get(suite.script_name(path), {}).get("passed", 0)


@pytest.mark.skipif(not suite.PROMQLTEST.is_dir(), reason=f"Prometheus's scripts are not at {suite.PROMQLTEST}")
@pytest.mark.parametrize("path", sorted(suite.PROMQLTEST.glob("*.test")), ids=lambda path: path.stem)
def test_script_of_prometheus_passes_as_often_as_recorded(path: Path, backend: Backend) -> None:
    passed, failures = _failures(path, backend)

    assert passed >= suite.recorded(backend.name).get(suite.script_name(path), {}).get("passed", 0), "\n".join(failures)
