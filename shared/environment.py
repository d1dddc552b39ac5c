"""Finds environment variables that look like settings but are not: a misspelt setting would have no effect."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence

from shared.errors import ConfigError
from shared.settings import variables

PREFIX = "TRIPTYCH_"
NAME_CHARS_MAX = 100
OTHER_VARIABLES = ("TRIPTYCH_CONFIG", "TRIPTYCH_TOKEN", "TRIPTYCH_URL")
"""Variables that have a meaning but are not settings."""
_OF_KUBERNETES = re.compile(r"TRIPTYCH_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""The variables that Kubernetes sets in every container if there is a service with the name triptych."""


def unknown_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Unknown variable with the prefix TRIPTYCH_ → the most similar known variable, or "" if none is similar."""
    known = [*variables(), *OTHER_VARIABLES]
    return {
        name: _nearest(name, known)
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known and not _OF_KUBERNETES.fullmatch(name)
    }


def _nearest(name: str, known: Sequence[str]) -> str:
    endings = [variable.removeprefix(PREFIX) for variable in known]
    matches = difflib.get_close_matches(name[:NAME_CHARS_MAX].removeprefix(PREFIX), endings, n=1)
    return PREFIX + matches[0] if matches else ""


def require_known_variables(environ: Mapping[str, str] = os.environ) -> None:
    """Raises ConfigError, which names all variables that would have no effect, but not their values, which may be
    secret."""
    unknown = unknown_variables(environ)
    if unknown:
        names = [
            f"{name[:NAME_CHARS_MAX]}{f' (did you mean {near}?)' if near else ''}" for name, near in unknown.items()
        ]
        raise ConfigError(
            f"{', '.join(names)}: not a setting, and would have no effect; unset it, or see docs/operations.md for the "
            "list of settings"
        )
