"""`triptych check` on a directory that a real cluster has made, whole and damaged in every kind of file."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from coordinator import check, cli
from coordinator.log import sequencer
from shared.data_files import NOTES, SET_ASIDE, WorkersReport, files_in, kind_of
from shared.durable import DAMAGED
from tests.check import damage, directory
from worker import check as worker_check
from worker.storage.rows.store import Store

FLIPS = int(os.environ.get("CHECK_FLIPS", "60"))
SEED = int(os.environ.get("CHECK_SEED", "1"))
pytestmark = pytest.mark.timeout(300 + 5 * FLIPS)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return directory.fill(tmp_path_factory.mktemp("check"))


@pytest.fixture
def data(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory, which a test leaves as it was; the workers' part is asked in this process."""

    def ask(data: Path) -> WorkersReport:
        return msgspec.json.decode(msgspec.json.encode(worker_check.check(data)), type=WorkersReport)

    monkeypatch.setattr(check, "_ask_workers", ask)
    before = state(made)
    yield made
    assert {path: own[1] for path, own in state(made).items()} == {path: own[1] for path, own in before.items()}


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    """One that a test may change."""
    shutil.copytree(data, tmp_path / "data", ignore=shutil.ignore_patterns("*.sock"))
    return tmp_path / "data"


def state(data: Path) -> dict[str, tuple[int, str]]:
    """Path → (time of the last change, hash of the content), directories included."""
    found = {}
    for path in [data, *data.rglob("*")]:
        content = path.read_bytes() if path.is_file() else b""
        found[str(path)] = path.stat().st_mtime_ns, hashlib.sha256(content).hexdigest()
    return found


def test_no_file_is_open_to_other_users(made: Path) -> None:
    assert [str(path) for path in [made, *made.rglob("*")] if path.lstat().st_mode & 0o077] == []


def command(data: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "coordinator.cli", "check", str(data), *options]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_whole_directory_is_said_to_be_well_and_not_changed(data: Path) -> None:
    before = state(data)
    asked = command(data)
    assert state(data) == before
    assert (asked.returncode, asked.stderr) == (check.WELL, "")
    files = len(list(files_in(data)))
    assert asked.stdout.splitlines()[-1] == f"no damage found; {files} files checked"


def test_one_file_is_counted_in_the_singular(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check.write_text(check.check(data), sys.stdout)
    lines = capsys.readouterr().out.splitlines()
    assert "log's state: 1 of 1 file intact" in lines
    assert "manifest: 2 of 2 files intact" in lines


def test_modules_in_the_current_directory_are_not_run(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "worker").mkdir()
    (tmp_path / "worker" / "__init__.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    assert command(copy).returncode == check.WELL


def test_directory_of_a_cluster_that_was_killed_is_well(tmp_path: Path) -> None:
    data = directory.kill(tmp_path)
    before = state(data)
    asked = command(data)
    assert (asked.returncode, asked.stderr) == (check.WELL, ""), asked.stdout
    assert state(data) == before


def test_directory_has_every_kind_of_file(data: Path) -> None:
    assert {
        "manifest", "identities", "locks", "log's state", "log's policies", "collections", "write-ahead log", "stores",
        "store markers", "store notes", "blocks", "vector index",
    } <= {kind_of(path) for path in files_in(data)}  # fmt: skip


def test_json_has_every_finding_with_its_kind(copy: Path) -> None:
    (copy / "sequencer/state").write_bytes(b"nonsense")
    asked = command(copy, "--json")
    assert asked.returncode == check.DAMAGED
    report = json.loads(asked.stdout)
    assert not report["well"]
    [finding] = [own for own in report["findings"] if own["is_damage"]]
    assert (finding["kind"], finding["path"]) == ("log's state", "sequencer/state")
    assert finding["what"] and finding["depends"] and finding["remedy"]


def test_flipped_byte_of_any_file_is_found_in_that_file_or_of_no_consequence(data: Path) -> None:
    seen = set()
    for place in damage.places(data, FLIPS, SEED):
        with damage.flipped(data, place):
            report = check.check(data)
        if not damage.why_harmless(data, place):
            assert place.path in report.damaged_paths or _is_told_of_store(place.path, report), (
                f"{place}: {report.damage}"
            )
            seen.add(kind_of(place.path))
    assert seen == {kind_of(path) for path in files_in(data)} - set(NOTES)
    assert not check.check(data).damage


def _is_told_of_store(path: str, report: check.Report) -> bool:
    """RocksDB does not always tell which file it was that it could not open."""
    store = str(Path(path).parent)
    told = (finding for finding in report.damage if "cannot be opened" in finding.what)
    return kind_of(path) == "stores" and any(finding.path.startswith(store) for finding in told)


def test_file_that_is_cut_off_is_found(data: Path) -> None:
    chance = random.Random(SEED)
    for kind, paths in damage.kinds(data).items():
        path = chance.choice(paths)
        if kind_of(path) in NOTES or _is_unused(data, path):
            continue
        with damage.cut(data, path, damage.used(data / path) // 2):
            report = check.check(data)
        assert path in report.damaged_paths, f"{kind} {path}: {report.damage}"


def test_file_that_is_missing_is_found(data: Path) -> None:
    chance = random.Random(SEED)
    for kind, paths in damage.kinds(data).items():
        path = chance.choice(paths)
        if kind_of(path) in NOTES or _is_unused(data, path):
            continue
        if path == check.POLICIES:  # as in a log without policies: a start does not miss it either
            continue
        with damage.missing(data, path):
            report = check.check(data)
        assert _is_named(path, report), f"{kind} {path}: {report.damage}"


def _is_named(path: str, report: check.Report) -> bool:
    return path in report.damaged_paths or any(Path(path).name in finding.what for finding in report.damage)


def _is_unused(data: Path, path: str) -> bool:
    """A spare file of the write-ahead log."""
    return path.endswith(".wal") and bool(damage.why_harmless(data, damage.Place(path, 64, 1)))


def test_missing_directory_of_a_shard_or_a_log_is_found(data: Path) -> None:
    for path in ("shards/0001", "wal/0001"):
        with damage.missing(data, path):
            assert path in check.check(data).damaged_paths


@pytest.mark.parametrize("name", check.LOCKS)
def test_directory_in_use_is_not_checked(data: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with open(data / name) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert cli.main(["check", str(data)]) == check.CANNOT_CHECK
    assert name in capsys.readouterr().err


def test_directory_of_something_else_is_not_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", str(tmp_path)]) == check.CANNOT_CHECK
    assert "is not a data directory" in capsys.readouterr().err


def test_store_in_use_is_not_checked(copy: Path) -> None:
    store = Store(copy / "shards/0000/store")
    try:
        assert command(copy).returncode == check.CANNOT_CHECK
    finally:
        store.close()


def test_what_was_set_aside_is_damage_until_it_is_deleted(copy: Path) -> None:
    places = ("shards/0000/blocks/x.block", "wal/0000/00000001.wal", "vector/collections.json", "anything")
    for place in places:
        aside = copy / (place + DAMAGED)
        aside.write_bytes(b"bytes")
        [finding] = check.check(copy).damage
        assert (finding.path, finding.kind) == (place + DAMAGED, SET_ASIDE)
        assert "delete it to accept" in finding.remedy
        aside.unlink()
    assert not check.check(copy).damage


def test_file_of_something_else_is_said_and_no_damage(copy: Path) -> None:
    (copy / "notes.txt").write_text("of an operator")
    report = check.check(copy)
    assert not report.damage
    assert [finding.path for finding in report.findings] == ["notes.txt"]


def test_numbers_below_those_that_shards_hold_are_damage(copy: Path) -> None:
    path = copy / "sequencer/state"
    state = sequencer.decode(path.read_bytes())
    path.write_bytes(sequencer.encode(msgspec.structs.replace(state, limit=100, next=100)))
    [finding] = check.check(copy).damage
    assert finding.path == "sequencer/state" and "its next sequence number is 100" in finding.what


def test_damaged_policies_are_said_to_refuse_a_start(copy: Path) -> None:
    (copy / check.POLICIES).write_bytes(b"nonsense")
    [finding] = check.check(copy).damage
    assert (finding.path, finding.kind) == (check.POLICIES, "log's policies")
    assert "a start refuses" in finding.depends and "remove it" in finding.remedy


def test_segment_that_the_state_does_not_know_is_damage(copy: Path) -> None:
    path = copy / "sequencer/state"
    state = sequencer.decode(path.read_bytes())
    other = [(own[0] - 1, *own[1:]) for own in state.segments]
    path.write_bytes(sequencer.encode(msgspec.structs.replace(state, segments=other)))
    assert any("it lacks the segments" in finding.what for finding in check.check(copy).damage)


def change(copy: Path, shard: int, family: str, start: bytes, value: bytes | None) -> None:
    """Write or remove the first row from `start` on, as a mistake of the program would."""
    store = Store(copy / f"shards/{shard:04d}/store")
    key, _ = next(store.scan(family, start))
    batch = store.batch()
    if value is None:
        batch.delete(family, key)
    else:
        batch.put(family, key, value)
    store.write(batch, durable=True)
    store.close()


def damaged_rows(copy: Path) -> str:
    return " ".join(finding.what for finding in check.check(copy).damage)


def long_key_shard(copy: Path) -> int:
    shard = directory.shard_with_runs(copy)
    assert shard is not None
    return shard


@pytest.mark.parametrize("folder", ["shards", "wal"])
def test_directories_that_were_exchanged_are_damage(copy: Path, folder: str) -> None:
    first, second = copy / folder / "0000", copy / folder / "0001"
    aside = copy / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    report = check.check(copy)
    assert {f"{folder}/0000", f"{folder}/0001"} <= report.damaged_paths


def test_run_that_is_missing_is_damage(copy: Path) -> None:
    change(copy, long_key_shard(copy), "log", b"r", None)
    assert "their runs are missing" in damaged_rows(copy)


def test_entry_that_is_missing_is_damage(copy: Path) -> None:
    change(copy, long_key_shard(copy), "log", b"e", None)
    assert "no entry names them" in damaged_rows(copy)


def test_series_that_blocks_and_journal_name_and_the_store_lacks_is_damage(copy: Path) -> None:
    change(copy, 0, "series", b"", None)
    texts = damaged_rows(copy)
    assert "the rows of its series end at id" in texts
    assert "series that the store does not have" in texts


def test_vector_of_a_wrong_length_is_damage(copy: Path) -> None:
    change(copy, 0, "vectors", b"", b"\1" * 20)
    assert "vectors of 'default' are damaged" in damaged_rows(copy)


def test_vectors_of_an_unknown_collection_are_damage(copy: Path) -> None:
    change(copy, 0, "meta", b"vector/collection/", None)
    assert "which the shard does not know" in damaged_rows(copy)


def test_more_shards_than_the_manifest_has_are_damage(copy: Path) -> None:
    shutil.copytree(copy / "shards/0000", copy / "shards/0007")
    assert "shards/0007" in check.check(copy).damaged_paths
