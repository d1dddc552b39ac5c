"""Reads the settings. A value comes from the environment (`TRIPTYCH_<FIELD>`), or else from the TOML file that
`TRIPTYCH_CONFIG` names, or else from the default. Errors name the setting."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from shared.errors import ConfigError
from shared.setting_values import convert
from shared.settings import Settings, variable


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process. Raises ConfigError."""
    hints = get_type_hints(Settings)
    values: dict[str, Any] = {}
    file = environ.get("TRIPTYCH_CONFIG")
    if file:
        for name, value in _read_toml(Path(file)).items():
            if name not in hints and f"{name}_ms" in hints:
                name = f"{name}_ms"
            elif name not in hints and f"{name}_bytes" in hints:
                name = f"{name}_bytes"
            if name not in hints:
                raise ConfigError(f"{file}: {name!r} is not a setting; see docs/operations.md for the list")
            values[name] = convert(name, hints[name], value, f"{file}: {name}")
    for name, hint in hints.items():
        text = environ.get(variable(name))
        if text is not None:
            values[name] = convert(name, hint, text, variable(name))
    return Settings(**values)


def _read_toml(path: Path) -> dict[str, Any]:
    if path.suffix in (".yml", ".yaml"):
        raise ConfigError(
            f"TRIPTYCH_CONFIG names {path}; it must be a TOML file of settings. TRIPTYCH_PROMETHEUS_CONFIG names a "
            "configuration file in Prometheus's format"
        )
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"TRIPTYCH_CONFIG names {path}, which cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
