"""SIGKILL during writes, index building, rebuilding and snapshotting: what was acknowledged is there, nothing else."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests import vector_writer
from tests.vector_writer import COLLECTION, DIMENSION, hasten, open_part, vector
from worker.vectors import indexing as indexing_module
from worker.vectors import loading as loading_module
from worker.vectors.search import search
from worker.vectors.similarity import prepared

ROUNDS = int(os.environ.get("VECTOR_CRASH_ROUNDS", "12"))
ROOT = Path(__file__).resolve().parents[2]

States = dict[int, set[int | None]]
"""Id → the versions it may have: one, unless a write of it was under way when the process was killed. None: absent."""


def follow(lines: list[str], states: States) -> None:
    under_way: dict | None = None

    def changes(entry: dict) -> list[tuple[int, int | None]]:
        return [
            *((number, version) for number, version in entry.get("put", [])),
            *((n, None) for n in entry.get("delete", [])),
        ]

    for line in lines:
        if line == "done":
            assert under_way is not None
            for number, version in changes(under_way):
                states[number] = {version}
            under_way = None
        else:
            under_way = json.loads(line)
    if under_way is not None:
        for number, version in changes(under_way):
            states.setdefault(number, {None}).add(version)


def run_and_kill(directory: Path, seed: int, seconds: float) -> list[str]:
    command = [sys.executable, "-m", "tests.vector_writer", str(directory), str(seed)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    lines = [process.stdout.readline().strip()]
    killer = threading.Timer(seconds, process.kill)
    killer.start()
    lines += [line.strip() for line in process.stdout if line.endswith("\n")]
    process.wait()
    killer.cancel()
    assert process.returncode == -9, f"the writer ended by itself with {process.returncode}"
    return [line for line in lines if line]


def check(directory: Path, states: States) -> None:
    store, part = open_part(directory)
    try:
        held = part.find(COLLECTION)
        assert held is not None
        numbers = sorted(states)
        contents = held.contents(0, [str(number).encode() for number in numbers])
        there: list[int] = []
        for number, content in zip(numbers, contents, strict=True):
            found = None
            if content is not None:
                matching = [v for v in states[number] if v is not None and content[0] == vector(number, v).tobytes()]
                assert matching, f"{number} has a content it should not have"
                found = matching[0]
                there.append(number)
            assert found in states[number], f"{number} should be one of {states[number]}"
            states[number] = {found}
        table = np.stack([vector(number, next(iter(states[number]))) for number in there])  # type: ignore[arg-type]
        deadline = time.monotonic() + 30
        while held.view().size > held.view().indexed:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        queries = prepared(np.random.default_rng(1).standard_normal((50, DIMENSION)).astype(np.float32), "cosine")
        near = queries @ prepared(table, "cosine").T
        expected = [{there[place] for place in np.argsort(-row)[:10]} for row in near]
        view = held.view()
        for exhaustive, least in ((True, 0.999), (False, 0.95)):
            found = search(view, queries, 10, "cosine", 64, exhaustive=exhaustive, bits=None, check=lambda: None)
            found_ids = [{int(view.ids[row]) for row in rows} for rows, _ in found.parts()]
            recall = np.mean([len(a & b) / 10 for a, b in zip(found_ids, expected, strict=True)])
            assert recall >= least
    finally:
        part.close()
        store.close()


def test_kills_lose_nothing_acknowledged_and_bring_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SNAPSHOT_ROWS", "SNAPSHOT_SHARE", "DEAD_ROWS_MIN", "SAVED_ROWS_MIN"):
        monkeypatch.setattr(indexing_module, name, getattr(indexing_module, name))
    monkeypatch.setattr(loading_module, "SETTLED_S", loading_module.SETTLED_S)
    hasten()
    states: States = {}
    pause = random.Random(4)
    for seed in range(1, ROUNDS + 1):
        follow(run_and_kill(tmp_path, seed, pause.uniform(0.05, 0.8)), states)
        check(tmp_path, states)
    assert len(states) > vector_writer.IDS / 2
