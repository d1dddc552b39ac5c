"""Which test executes which line: coverage with the test as context, recorded once for each state of the sources."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shared.kernels.sources import PACKAGES
from tests.mutants import kernels
from tests.mutants.sampling import ROOT
from tests.mutants.timing import VARIABLE

CACHE = ROOT / "build" / "mutants"
RECORDED_TEST_TIMEOUT_S = 20
"""A test that takes longer, under coverage, is not used to try mutants."""
FILES_AT_ONCE = 6
"""Files of tests recorded by one process: what is recorded is kept when a later one is stopped."""
RECORDING_TIMEOUT_S = 1200.0

TESTS: dict[str, tuple[str, ...]] = {
    "storage": (
        "test_durable.py",
        "test_exchange.py",
        "test_face_*.py",
        "test_group_sync.py",
        "test_log_counts.py",
        "test_log_methods.py",
        "test_log_part.py",
        "test_log_reading.py",
        "test_log_records.py",
        "test_log_revoking.py",
        "test_log_rows.py",
        "test_log_segments_answer.py",
        "test_log_state.py",
        "test_log_state_lost.py",
        "test_identity.py",
        "test_manifest.py",
        "test_rendered_answers.py",
        "test_sample_writes.py",
        "test_selected_vectors.py",
        "test_series_*.py",
        "test_storage*.py",
        "test_store_*.py",
        "test_vector_*.py",
        "test_wal*.py",
        "test_worker_damage.py",
    ),
    "protocol": (
        "test_http_bodies.py",
        "test_links*.py",
        "test_log_*.py",
        "test_remote_write*.py",
        "test_responses.py",
        "test_sample_writes.py",
        "test_series_arrays.py",
        "test_series_listing.py",
        "test_series_metadata.py",
        "test_serving.py",
        "test_vector_*.py",
        "test_wire.py",
        "test_worker_damage.py",
    ),
    "engine": (
        "test_answer_bodies.py",
        "test_engine_*.py",
        "test_exchange.py",
        "test_operators_*.py",
        "test_parameters.py",
        "test_planner*.py",
        "test_promql_*.py",
        "test_query_*.py",
        "test_rendered_answers.py",
        "test_results.py",
        "../conformance/test_scripts.py",
    ),
}
"""Group → files of tests, from tests/unit, that are about it."""

SLOW = ("twenty_seconds", "every_kind", "no_flipped_byte", "[cluster-")
"""Parts of the names of tests that try very many cases: what they find, an example finds in a hundredth of the time.
And of those that only ask other processes: they execute no line that the recording sees."""

PLAIN = ("engine",)
"""Groups whose tests run with kernels as plain Python, see `plain_kernels`: coverage sees the lines of a kernel then,
and no mutant has to be compiled. Their tests are small enough, those of the others are not."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One run of tests: its coverage data, and the seconds of the tests that count in it."""

    data: Path
    seconds: dict[str, float]


def recordings(tree: Path, groups: Iterable[str], jobs: int = 1) -> list[Recording]:
    """Of all tests of these groups. Only files of tests that were not recorded with these sources before are run,
    `jobs` processes at a time."""
    directory = CACHE / _digest(_supporting())
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {path.relative_to(ROOT).as_posix(): _digest([path]) for path in test_files(groups)}
    known = _known(directory, wanted)
    have = {file for _, files in known for file in files}
    missing = wanted.keys() - have
    plain = {path.relative_to(ROOT).as_posix() for path in test_files(PLAIN)}

    def run(files: list[str]) -> None:
        name = f"{time.time_ns()}"
        env = environment(tree, plain=files[0] in plain)
        record(tree, files, directory / f"{name}.coverage", directory / f"{name}.times", env)
        times = json.loads((directory / f"{name}.times").read_text())
        entry = {"files": {file: wanted[file] for file in files}, "seconds": times}
        (directory / f"{name}.json").write_text(json.dumps(entry))

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(run, [*_some(sorted(missing & plain)), *_some(sorted(missing - plain))]):
            pass
    known = _known(directory, wanted)
    return [
        Recording(data, {test: s for test, s in _seconds(data).items() if test.partition("::")[0] in files})
        for data, files in known
    ]


def _some(files: list[str]) -> list[list[str]]:
    return [files[at : at + FILES_AT_ONCE] for at in range(0, len(files), FILES_AT_ONCE)]


def test_files(groups: Iterable[str]) -> list[Path]:
    """The files of `TESTS`."""
    unit = ROOT / "tests" / "unit"
    return sorted({path.resolve() for group in groups for pattern in TESTS[group] for path in unit.glob(pattern)})


def record(tree: Path, tests: Iterable[str], data: Path, times: Path, env: dict[str, str]) -> None:
    """Run these tests in `tree` under coverage; paths in the data are relative to it."""
    settings = data.with_suffix(".rc")
    settings.write_text(f"[run]\nrelative_files = true\nsource = {','.join(PACKAGES)}\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.timing"]
    command += ["-p", "tests.mutants.plain_kernels", "-p", "tests.mutants.examples"]
    command += ["--cov", "--cov-context=test", f"--cov-config={settings}", "--cov-report=", "--tb=line"]
    command += [f"--timeout={RECORDED_TEST_TIMEOUT_S}", "-k", " and ".join(f"not {part}" for part in SLOW), *tests]
    own = {"COVERAGE_FILE": str(data), VARIABLE: str(times)}
    with open(data.with_suffix(".log"), "wb") as log:
        subprocess.run(
            command, cwd=tree, env=env | own, timeout=RECORDING_TIMEOUT_S, check=False, stdout=log, stderr=log
        )


def environment(tree: Path, *, plain: bool = False) -> dict[str, str]:
    """For tests that run in `tree`. Compiled kernels are kept beside it, for the next run of the same sources. `plain`:
    kernels are not compiled, they run as Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TRIPTYCH_")}
    in_memory = Path("/dev/shm")  # syncs of hundreds of little files, which nobody needs
    return kept | {
        "TMPDIR": str(in_memory) if in_memory.is_dir() else tempfile.gettempdir(),
        "PYTHONPATH": str(tree),
        "NUMBA_CACHE_DIR": str(tree.with_name(kernels.NAME)),
        "NUMBA_DISABLE_JIT": str(int(plain)),
        "TRIPTYCH_PROMQLTEST": os.environ.get("TRIPTYCH_PROMQLTEST") or str(ROOT.parent / "shared" / "promqltest"),
    }


def _known(directory: Path, wanted: dict[str, str]) -> list[tuple[Path, set[str]]]:
    """Coverage data and the files of tests that it is valid for, the latest recording of each file."""
    latest: dict[str, Path] = {}
    for entry in sorted(directory.glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
        for file, digest in json.loads(entry.read_text())["files"].items():
            if wanted.get(file) == digest:
                latest[file] = entry.with_suffix(".coverage")
    return [(data, {file for file, own in latest.items() if own == data}) for data in sorted(set(latest.values()))]


def _seconds(data: Path) -> dict[str, float]:
    seconds: dict[str, float] = json.loads(data.with_suffix(".json").read_text())["seconds"]
    return seconds


def _supporting() -> list[Path]:
    """The sources, and the modules of tests that hold no tests themselves."""
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    support = [path for path in (ROOT / "tests").glob("**/*.py") if not path.name.startswith("test_")]
    support += (ROOT / "loadtest" / "harness").glob("*.py")
    return [*sources, *(path for path in support if path.parent.name in ("tests", "unit", "conformance", "harness"))]


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
