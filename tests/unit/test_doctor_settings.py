"""Findings of `triptych doctor` about the settings."""

from __future__ import annotations

import pytest

from coordinator.doctor import settings as settings_findings
from shared.setting_sources import load
from shared.settings import Settings
from tests.unit.doctor_findings import level

GB = 1 << 30


def test_settings_that_a_start_refuses_and_names_that_are_none() -> None:
    settings, findings = settings_findings.load({"TRIPTYCH_SHARDS": "-1", "TRIPTYCH_RETENTON": "1d"})
    assert settings is None
    assert [level(found) for found in findings] == ["problem", "problem"]
    assert "TRIPTYCH_RETENTION" in findings[0].right
    assert "TRIPTYCH_SHARDS is -1" in findings[1].seen
    settings, findings = settings_findings.load({"TRIPTYCH_RETENTON": "1d"})
    assert settings is not None
    assert [level(found) for found in findings] == ["problem", "ok"], "a start refuses it"
    settings, findings = settings_findings.load({})
    assert [level(found) for found in findings] == ["ok"]


def test_budgets_beyond_the_memory_there_is() -> None:
    settings = Settings(queries_bytes_max=GB, workers=2)
    assert level(settings_findings.budgets(settings, 8 * GB)) == "ok"
    assert level(settings_findings.budgets(settings, 3_400_000_000)) == "warning"
    found = settings_findings.budgets(settings, 2 * GB)
    assert level(found) == "problem"
    assert "TRIPTYCH_QUERIES_BYTES_MAX 1.0 GB" in found.right


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"TRIPTYCH_BODY_BYTES_MAX": "1GB"}, "TRIPTYCH_BODY_BYTES_MAX"),
        ({"TRIPTYCH_DECOMPRESSED_BYTES_MAX": "1GB"}, "TRIPTYCH_DECOMPRESSED_BYTES_MAX"),
        ({"TRIPTYCH_LOG_RECORD_BYTES_MAX": "64MB"}, "TRIPTYCH_LOG_RECORD_BYTES_MAX"),
        ({"TRIPTYCH_LOG_BATCH_BYTES_MAX": "512MB"}, "TRIPTYCH_LOG_BATCH_BYTES_MAX"),
        ({"TRIPTYCH_QUERIES_BYTES_MAX": "64MB"}, "TRIPTYCH_QUERY_BYTES_MAX"),
        ({"TRIPTYCH_MEMORY_RESERVE_BYTES": "900TB"}, "TRIPTYCH_MEMORY_RESERVE_BYTES"),
        ({"TRIPTYCH_RETENTION": "1h"}, "TRIPTYCH_RETENTION"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, str], name: str) -> None:
    assert [found.name for found in settings_findings.contradictions(load(values))] == [name]
    for found in settings_findings.contradictions(load(values)):
        assert level(found) in ("warning", "problem")


def test_defaults_contradict_nothing() -> None:
    assert list(settings_findings.contradictions(Settings(queries_bytes_max=GB))) == []
    assert list(settings_findings.dangers(Settings())) == []


def test_endless_retention_on_a_small_disk() -> None:
    assert level(settings_findings.retention(Settings(), 1000 * GB)) == "ok"
    found = settings_findings.retention(Settings(), 50 * GB)
    assert level(found) == "warning"
    assert found.seen == "samples and log records are never dropped, on a disk of 50.0 GB"
    only_log = settings_findings.retention(Settings(retention_ms=86_400_000), 50 * GB)
    assert only_log.seen.startswith("log records are never dropped")
    assert only_log.right == "set TRIPTYCH_LOG_RETENTION or TRIPTYCH_LOG_RETENTION_BYTES=20480MB"
    suggested = settings_findings.retention(Settings(), 40 << 20).right
    assert "TRIPTYCH_RETENTION_BYTES=16MB" in suggested, "0GB would mean never"
    bounded = Settings(retention_ms=86_400_000, log_retention_bytes=GB)
    assert level(settings_findings.retention(bounded, 50 * GB)) == "ok"
    assert level(settings_findings.retention(Settings(retention_bytes=60 * GB), 50 * GB)) == "problem"


def test_what_gives_something_up() -> None:
    settings = Settings(
        listen="0.0.0.0:1", admin_api=True, allowed_hosts=("*",), core_dumps=True, durability="buffered"
    )
    names = ["TRIPTYCH_ADMIN_API", "TRIPTYCH_ALLOWED_HOSTS", "TRIPTYCH_CORE_DUMPS", "TRIPTYCH_DURABILITY"]
    assert [found.name for found in settings_findings.dangers(settings)] == names
    assert {level(found) for found in settings_findings.dangers(settings)} == {"warning"}


def test_a_pattern_of_origins_that_a_start_refuses() -> None:
    (found,) = settings_findings.origins(Settings(cors_origin="("))
    assert level(found) == "problem"
    assert "TRIPTYCH_CORS_ORIGIN is '('" in found.seen and found.seen.endswith(": missing ): (")
    assert list(settings_findings.origins(Settings(cors_origin="https://a"))) == []
