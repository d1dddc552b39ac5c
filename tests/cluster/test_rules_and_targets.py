"""What Prometheus tells of rules, alerts, targets and features: empty lists in its shapes, and no 404."""

from __future__ import annotations

import pytest

from loadtest.harness.cluster import Cluster


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("/api/v1/rules", {"groups": []}),
        (
            "/api/v1/rules?type=alert&exclude_alerts=true&rule_name[]=a&file[]=b&match[]=%7Ba%3D%22b%22%7D",
            {"groups": []},
        ),
        ("/api/v1/rules?group_limit=5", {"groups": []}),
        ("/api/v1/alerts", {"alerts": []}),
        ("/api/v1/targets?state=active", {"activeTargets": [], "droppedTargets": [], "droppedTargetCounts": {}}),
        ("/api/v1/targets/metadata?match_target=%7Bjob%3D%22a%22%7D&limit=2&metric=up", []),
        ("/api/v1/scrape_pools", {"scrapePools": []}),
        ("/api/v1/alertmanagers", {"activeAlertmanagers": [], "droppedAlertmanagers": []}),
        ("/api/v1/notifications", []),
    ],
)
def test_lists_are_empty(cluster: Cluster, path: str, data: object) -> None:
    answer = cluster.request("GET", path)
    assert answer.status == 200, answer.body
    assert answer.json() == {"status": "success", "data": data}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/api/v1/rules?type=both", "'type' is 'both'; it must be alert or record"),
        ("/api/v1/rules?exclude_alerts=maybe", "'exclude_alerts' is 'maybe'"),
        ("/api/v1/rules?match[]=up%7B", "'match[]'"),
        ("/api/v1/rules?group_limit=0", "greater than 0"),
        ("/api/v1/rules?group_limit=-1", "'group_limit'"),
        ("/api/v1/rules?group_next_token=abc", "needs 'group_limit'"),
        ("/api/v1/rules?group_limit=1&group_next_token=abc", "'group_next_token' is 'abc'"),
        ("/api/v1/targets/metadata?match_target=up%7B", "'match_target'"),
        ("/api/v1/targets/metadata?limit=few", "'limit'"),
    ],
)
def test_wrong_filters_are_named(cluster: Cluster, path: str, why: str) -> None:
    answer = cluster.request("GET", path)
    assert answer.status == 400
    assert answer.json()["errorType"] == "bad_data"
    assert why in answer.json()["error"]


def test_features_have_the_categories_of_prometheus(cluster: Cluster) -> None:
    data = cluster.get("/api/v1/features").json()["data"]
    assert set(data) <= {"api", "promql", "promql_functions", "promql_operators", "tsdb"}
    assert data["promql_functions"]["rate"] is True
    assert data["promql_operators"]["topk"] is True
    assert data["api"]["admin"] is True
    assert "features" not in cluster.get("/api/v1/status/buildinfo").json()["data"]


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_tombstones_need_no_cleaning(cluster: Cluster, method: str) -> None:
    assert cluster.request(method, "/api/v1/admin/tsdb/clean_tombstones").status == 204
