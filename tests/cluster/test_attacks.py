"""What one client does to another one beside it: each attack small and short, with twice the target as the bound.

`python -m loadtest.attacks` has the attacks in full size. A noisy machine is why the bounds are wide.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from loadtest.attacks import data, report
from loadtest.attacks.catalogue import named
from loadtest.attacks.priority import raised
from loadtest.attacks.running import few_open_files, run
from loadtest.attacks.target import Target
from loadtest.harness.cluster import MEASURED, Cluster

SECONDS, AFTER_S = 1.0, 0.5
SLACK = 2.0
NICENESS = -5
AMOUNTS = data.Amounts(series=2_000, samples=40, grid_series=4_500, long_values=40, records=2_000, vectors=1_000)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Target]]:
    """A cluster with data, which has answered a bystander before."""
    cluster = Cluster(tmp_path_factory.mktemp("attacked"), settings=MEASURED)
    with raised(NICENESS):
        try:
            with few_open_files():
                cluster.start()
            target = data.load(cluster, AMOUNTS)
            run(cluster, target, None, SECONDS)
            yield cluster, target
        finally:
            cluster.kill()


def check(attacked: tuple[Cluster, Target], name: str) -> None:
    """An attack whose targets must be met, after which the cluster is whole."""
    cluster, target = attacked
    (attack,) = named([name])
    result = run(cluster, target, attack, SECONDS, AFTER_S)
    assert not result.missed(SLACK), report.lines(result)
    cluster.wait_ready()


@pytest.mark.parametrize("name", ["bodies-nested", "slow-bodies", "heads", "grid", "label-replace"])
def test_bystander_hardly_notices(attacked: tuple[Cluster, Target], name: str) -> None:
    check(attacked, name)
