"""What `triptych doctor` says of the configuration file and of the rule files that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.doctor import configuration
from shared.settings import Settings
from tests.unit.doctor_findings import level

RULES = "groups: [{name: shop, rules: [{record: a, expr: %s}]}]"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "rules.yml").write_text(RULES % "up")
    return tmp_path / "prometheus.yml"


def test_without_a_file_there_is_nothing_to_say() -> None:
    assert list(configuration.look(Settings())) == []


def test_a_file_that_a_start_accepts(path: Path) -> None:
    path.write_text("rule_files: [rules.yml]\nscrape_configs: [{job_name: a}, {job_name: b}]")
    (found,) = configuration.look(Settings(prometheus_config=str(path)))
    assert level(found) == "ok"
    assert found.seen == f"{path} is valid: 1 group of rules, 2 jobs to scrape"


@pytest.mark.parametrize(
    ("text", "rules", "named"),
    [
        (None, "up", "cannot be read: No such file or directory"),
        ("scrape_confg: []", "up", "line 1: scrape_confg: unknown field 'scrape_confg'; did you mean scrape_configs?"),
        ("scrape_configs: [{job_name: a, scrape_interval: 5}]", "up", "scrape_interval"),
        ("rule_files: [rules.yml]", "up{", "rules.yml"),
        ("alerting: {alertmanagers: [{scheme: ftp}]}", "up", "scheme"),
    ],
)
def test_a_file_that_a_start_refuses(path: Path, text: str | None, rules: str, named: str) -> None:
    if text is not None:
        path.write_text(text)
    (path.parent / "rules.yml").write_text(RULES % f"'{rules}'")
    (found,) = configuration.look(Settings(prometheus_config=str(path)))
    assert level(found) == "problem"
    assert named in found.seen
