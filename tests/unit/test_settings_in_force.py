"""Settings in force, as the status endpoints show them."""

from __future__ import annotations

import pytest

from coordinator.api.settings_in_force import in_force
from coordinator.fanout.shards import RATE_INTERVAL_S, Rates
from shared.setting_sources import load
from shared.settings import Settings, variables
from shared.urls import without_secrets


def test_each_setting_has_its_value_and_its_default() -> None:
    rows = {row["name"]: row for row in in_force(Settings(query_timeout_ms=90_000, allowed_hosts=("a", "b")))}
    assert len(rows) == len(variables())
    assert rows["query_timeout"] == {
        "name": "query_timeout",
        "variable": "TRIPTYCH_QUERY_TIMEOUT",
        "value": "1m30s",
        "default": "2m",
        "isDefault": False,
        "meaning": "longest timeout of a query",
    }
    assert rows["allowed_hosts"]["value"] == "a,b"
    assert rows["head_bytes"]["value"] == "512MB"
    assert rows["admin_api"]["value"] == "false"
    assert rows["shards"]["isDefault"]


def test_names_of_settings_are_those_that_a_file_may_have(tmp_path) -> None:
    file = tmp_path / "all.toml"
    rows = in_force(Settings())
    texts = [row for row in rows if row["name"] not in ("allowed_hosts", "allowed_origins")]
    numbers = ("true", "false")
    file.write_text(
        "".join(
            f"{row['name']} = {row['value']}\n"
            if row["value"] in numbers or row["value"].replace(".", "").isdigit()
            else f"{row['name']} = '{row['value']}'\n"
            for row in texts
        )
    )
    assert load({"TRIPTYCH_CONFIG": str(file)}) == Settings()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:secret@otel:4318/v1?api-key=secret", "https://***@otel:4318/v1?***"),
        ("https://secret@otel", "https://***@otel"),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("https://a.org,https://u:p@b.org", "https://a.org,https://***@b.org"),
        ("http://[broken", "***"),
        ("data", "data"),
        ("http://h/p#secret", "http://h/p"),
    ],
)
def test_a_url_is_shown_without_its_secrets(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_rates_are_the_growth_of_counts() -> None:
    rates = Rates()
    assert rates.per_second() == {}
    rates.note({"samples_in": 100, "records_in": 5}, 10.0)
    assert rates.per_second() == {}
    rates.note({"samples_in": 200, "records_in": 5, "vectors_in": 4}, 12.0)
    assert rates.per_second() == {"samples": 50.0, "records": 0.0, "vectors": 2.0}
    for beat in range(1, 41):
        rates.note({"samples_in": 200 + 10 * beat, "records_in": 5, "vectors_in": 4}, 12.0 + RATE_INTERVAL_S * beat)
    assert rates.per_second() == {"samples": 2.0, "records": 0.0, "vectors": 0.0}
    rates.note({"samples_in": 7}, 500.0)
    assert rates.per_second() == {}
