"""Variables that look like settings and are none."""

from __future__ import annotations

import pytest

from shared.environment import require_known_variables, unknown_variables
from shared.errors import ConfigError


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


def test_a_start_with_unknown_variables_is_refused_by_their_names_and_not_their_values() -> None:
    environ = {"TRIPTYCH_ALLOWED_HOST": "secret", "TRIPTYCH_BANANA": "secret", "TRIPTYCH_LISTEN": "127.0.0.1:1"}
    with pytest.raises(ConfigError) as refused:
        require_known_variables(environ)
    said = str(refused.value)
    assert "TRIPTYCH_ALLOWED_HOST (did you mean TRIPTYCH_ALLOWED_HOSTS?), TRIPTYCH_BANANA: not a setting" in said
    assert "secret" not in said
    require_known_variables({"TRIPTYCH_LISTEN": "127.0.0.1:1", "TRIPTYCH_URL": ""})
