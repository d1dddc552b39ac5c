"""Why no test notices a mutant: what `survivors.toml` says of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from tests.mutants.sampling import ROOT, Mutant

SURVIVORS = Path(__file__).with_name("survivors.toml")
EQUIVALENT = "equivalent"
"""What a reason begins with when nobody who uses the product could see a difference, save in the time it takes."""
UNKNOWN = "no reason known: a test is missing"


class Reasons:
    """An entry is for the mutants of an operator in a line of a file, whatever its number; where it says what the line
    `becomes`, for that one alone."""

    def __init__(self, path: Path = SURVIVORS) -> None:
        self._entries = tomllib.loads(path.read_text()).get("survivor", [])

    def of(self, mutant: Mutant) -> str:
        line, becomes = line_of(mutant), ""
        for entry in self._entries:
            if (entry["path"], entry["operator"], entry["line"]) != (mutant.path, mutant.operator, line):
                continue
            becomes = becomes or line_of(mutant, is_changed=True)
            if entry.get("becomes", becomes) == becomes:
                return str(entry["reason"])
        return UNKNOWN


def line_of(mutant: Mutant, *, is_changed: bool = False) -> str:
    """The line it is in, as it is or as the mutant changes it."""
    source = (ROOT / mutant.path).read_text()
    return (mutant.apply(source) if is_changed else source).splitlines()[mutant.line - 1].strip()
