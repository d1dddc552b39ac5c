"""Variables of the environment that look like settings and are none: a misspelt setting would have no effect."""

from __future__ import annotations

import difflib
import logging
import os
import re
from collections.abc import Mapping, Sequence

from shared import config
from shared.telemetry import event

PREFIX = "TRIPTYCH_"
NAME_CHARS_MAX = 100
OTHER_VARIABLES = ("TRIPTYCH_CONFIG", "TRIPTYCH_TOKEN", "TRIPTYCH_URL")
"""Variables with a meaning that are no settings."""
_OF_KUBERNETES = re.compile(r"TRIPTYCH_(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")
"""What Kubernetes sets in every container beside a service with the name triptych."""


def unknown_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The names that begin with TRIPTYCH_ and mean nothing, each with the nearest name that does; empty if none is
    near."""
    known = [*config.variables(), *OTHER_VARIABLES]
    return {
        name: _nearest(name, known)
        for name in sorted(environ)
        if name.startswith(PREFIX) and name not in known and not _OF_KUBERNETES.fullmatch(name)
    }


def _nearest(name: str, known: Sequence[str]) -> str:
    endings = [one.removeprefix(PREFIX) for one in known]
    matches = difflib.get_close_matches(name[:NAME_CHARS_MAX].removeprefix(PREFIX), endings, n=1)
    return PREFIX + matches[0] if matches else ""


def warn_of_unknown_variables() -> None:
    """Say in the log which variables have no effect. Their values may be secret and are not logged."""
    for name, nearest in unknown_variables().items():
        hint = {"nearest": nearest} if nearest else {}
        event(logging.WARNING, "this variable is no setting and has no effect", variable=name[:NAME_CHARS_MAX], **hint)
