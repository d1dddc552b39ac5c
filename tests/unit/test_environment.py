"""Variables that look like settings and are none."""

from __future__ import annotations

import pytest

from shared import telemetry
from shared.environment import unknown_variables, warn_of_unknown_variables


def test_a_misspelt_setting_is_found_with_the_name_that_was_meant() -> None:
    environ = {
        "TRIPTYCH_LISTEN": "",
        "TRIPTYCH_CONFIG": "",
        "TRIPTYCH_URL": "",
        "TRIPTYCH_TOKEN": "",
        "PATH": "",
        "TRIPTYCH_RETENTION_MS": "",
        "TRIPTYCH_QUERY_TIMEOUTS": "",
        "TRIPTYCH_BANANA": "",
    }
    assert unknown_variables(environ) == {
        "TRIPTYCH_BANANA": "",
        "TRIPTYCH_QUERY_TIMEOUTS": "TRIPTYCH_QUERY_TIMEOUT",
        "TRIPTYCH_RETENTION_MS": "TRIPTYCH_RETENTION",
    }


def test_what_kubernetes_says_of_a_service_named_triptych_is_no_setting() -> None:
    names = ["SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_9090_TCP", "PORT_9090_TCP_ADDR"]
    assert unknown_variables({f"TRIPTYCH_{name}": "x" for name in names}) == {}


def test_the_log_names_the_variable_and_not_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIPTYCH_ALLOWED_HOST", "secret")
    telemetry.configure("info")
    warn_of_unknown_variables()
    said = capsys.readouterr().err
    assert "variable=TRIPTYCH_ALLOWED_HOST nearest=TRIPTYCH_ALLOWED_HOSTS" in said
    assert "secret" not in said
