"""Which scripts there are, and how many evaluations of each passed."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from tests.conformance.runner import Backend, Outcome, Verdict, run_script

HERE = Path(__file__).parent
OWN_SCRIPTS = HERE / "scripts"
RECORDED = HERE / "recorded.json"
PROMQLTEST = Path(os.environ.get("TRIPTYCH_PROMQLTEST", HERE.parents[2] / "shared" / "promqltest"))

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

Counts = dict[str, dict[str, int]]
"""File, with its folder's name → verdict → how many evaluations."""


def scripts() -> list[Path]:
    """The project's own scripts, then those of Prometheus where they are present."""
    return [*sorted(OWN_SCRIPTS.glob("*.test")), *sorted(PROMQLTEST.glob("*.test"))]


def script_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def run(paths: Iterable[Path], backend: Backend) -> dict[str, list[Outcome]]:
    return {script_name(path): list(run_script(path, backend)) for path in paths}


def count(outcomes: dict[str, list[Outcome]]) -> Counts:
    return {
        name: {verdict: seen[verdict] for verdict in VERDICTS}
        for name, seen in ((name, Counter(one.verdict for one in found)) for name, found in outcomes.items())
    }


def recorded(mode: str) -> Counts:
    """What was counted when the counts were last recorded; empty if they never were."""
    return dict(json.loads(RECORDED.read_text()).get(mode, {})) if RECORDED.exists() else {}


def record(mode: str, counts: Counts) -> None:
    """Keeps the counts of scripts that are not present here."""
    held = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    held[mode] = {**held.get(mode, {}), **counts}
    RECORDED.write_text(json.dumps(held, indent=2, sort_keys=True) + "\n")
