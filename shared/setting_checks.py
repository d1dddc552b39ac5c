"""Checks of the value of a setting. Each function raises ConfigError, which names the variable, its value and what is
valid."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shared.errors import ConfigError

_HOST = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*\.?", re.ASCII)
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/@?#\s*]+", re.IGNORECASE)


def require_within(variable: str, value: Any, least: float | None, most: float | None) -> None:
    """`least`, `most`: None for no bound."""
    if least is not None and value < least:
        raise ConfigError(f"{variable} is {value}; it must be at least {least}")
    if most is not None and value > most:
        raise ConfigError(f"{variable} is {value}; it must be at most {most}")


def require_one_of(variable: str, value: Any, choices: Sequence[str]) -> None:
    """`choices`: empty if every value is valid."""
    if choices and value not in choices:
        raise ConfigError(f"{variable} is {value!r}; it must be one of {', '.join(choices)}")


def require_hosts(variable: str, names: Sequence[str]) -> None:
    for name in names:
        if not _HOST.fullmatch(name):
            raise ConfigError(
                f"{variable} has {name!r}; it must be a name such as triptych.example.org, no port, "
                "*.example.org for all below it, or * for any"
            )


def require_origins(variable: str, origins: Sequence[str]) -> None:
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise ConfigError(
                f"{variable} has {origin!r}; an origin must be such as https://example.org, with the port unless it is "
                "the scheme's own, and without a path"
            )


def require_url(variable: str, url: str, example: str) -> None:
    """`url`: empty if the setting is not used."""
    if url and not url.startswith(("http://", "https://")):
        raise ConfigError(f"{variable} is {url!r}; it must be a URL such as {example}")
