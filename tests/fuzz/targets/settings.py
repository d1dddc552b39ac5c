"""Settings: a TOML file, and variables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from shared.errors import ConfigError
from shared.setting_sources import load
from shared.settings import Settings
from tests.fuzz import scratch
from tests.fuzz.target import Target


def _from_file(data: bytes) -> None:
    path = scratch.directory() / "settings.toml"
    path.write_bytes(data)
    load({"TRIPTYCH_CONFIG": str(path)})


def _from_variables(data: bytes) -> None:
    """A line for each variable: its name, `=` and its text."""
    lines = data.decode(errors="surrogateescape").replace("\0", "").split("\n")
    load({f"TRIPTYCH_{name}": text for name, equals, text in (line.partition("=") for line in lines) if equals})


def _toml() -> Iterator[bytes]:
    yield b'listen = "127.0.0.1:0"\nshards = 4\nquery_timeout = "30s"\nblock_cache_bytes = "64MB"\n'
    yield b'vector_metric = "l2"\nretention_ms = 5\nhead_bytes = 1.5e9\nremote_write = false\n'


def _lines() -> Iterator[bytes]:
    yield b"LISTEN=[::1]:9090\nSHARDS=2\nWORKERS=1\nQUERY_TIMEOUT=1h30m\nHEAD_BYTES=1.5GB\nREMOTE_WRITE=off"


_NAMES = tuple(field.name for field in fields(Settings))

TARGETS = [
    Target("settings-file", _from_file, _toml, refusals=(ConfigError,), tokens=(*_NAMES, "inf", "nan", "[", "1e999")),
    Target(
        "settings-variables",
        _from_variables,
        _lines,
        refusals=(ConfigError,),
        tokens=(*(name.upper() for name in _NAMES), "GB", "1h", "inf", "nan"),
    ),
]
