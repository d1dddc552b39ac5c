"""Traces are off unless a collector is set, and a missing library is named."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shared import tracing
from shared.errors import ConfigError


@pytest.fixture(autouse=True)
def no_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(tracing.ENDPOINT_VARIABLE, raising=False)


def test_nothing_is_imported_unless_a_collector_is_set() -> None:
    program = (
        "import sys; from shared import tracing; tracing.load(''); tracing.start('', 'p'); tracing.stop(); "
        "assert not tracing.is_on(); assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_missing_library_is_named_where_a_setting_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "EXPORTER", "no_such_library")
    with pytest.raises(ConfigError, match=r"TRIPTYCH_TRACES.*triptych\[traces\]"):
        tracing.load("http://127.0.0.1:4318")
    monkeypatch.setenv(tracing.ENDPOINT_VARIABLE, "http://127.0.0.1:4318")
    tracing.load("")  # the variable may be meant for other programs
    tracing.start("", "p")
    assert not tracing.is_on()
