"""Each finding of `triptych doctor`, made so; what is well is not reported."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import cli
from coordinator.command_client import Answer, Client
from coordinator.doctor import cluster, data, disk, machine, report
from coordinator.doctor import settings as settings_findings
from coordinator.doctor.finding import Finding
from shared.config import Settings, load
from shared.manifest import Manifest
from tests.earlier_format import put_back

GB = 1 << 30


def level(finding: Finding | None) -> str:
    assert finding is not None
    assert finding.seen
    assert bool(finding.right) == (finding.level != "ok")
    return finding.level


# The machine


def test_few_open_files() -> None:
    settings = Settings(shards=4, workers=2, connections_max=5000)
    assert level(machine.open_file_limit(20_000, settings)) == "ok"
    assert level(machine.open_file_limit(2000, settings)) == "warning"
    assert level(machine.open_file_limit(1024, settings)) == "problem"


def test_a_limit_of_memory_or_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [level(found) for found in machine.limits()] == ["ok", "ok"]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    assert [level(found) for found in machine.limits()] == ["problem", "problem", "warning"]


def test_more_workers_than_processors(tmp_path: Path) -> None:
    assert level(machine.processors(4, 4)) == "ok"
    assert level(machine.processors(0.5, 1)) == "ok"
    found = machine.processors(1.5, 4)
    assert level(found) == "warning"
    assert "TRIPTYCH_WORKERS=1" in found.right
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine._processors(tmp_path) == 0.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine._processors(tmp_path) == len(os.sched_getaffinity(0))


def test_little_memory() -> None:
    assert level(machine.machine_memory(8 * GB, 8 * GB, 4 * GB)) == "ok"
    assert level(machine.machine_memory(8 * GB, 8 * GB, GB // 2)) == "warning"
    found = machine.machine_memory(GB // 2, 8 * GB, GB // 4)
    assert level(found) == "problem"
    assert "control group" in found.seen


def test_swap_huge_pages_overcommit_and_an_old_kernel() -> None:
    assert level(machine.swap(0, 8 * GB)) == "ok"
    assert level(machine.swap(GB, 8 * GB)) == "warning"
    assert level(machine.huge_pages("always [madvise] never\n")) == "ok"
    assert level(machine.huge_pages("")) == "ok"
    assert level(machine.huge_pages("[always] madvise never\n")) == "warning"
    assert level(machine.overcommit("0\n")) == "ok"
    assert level(machine.overcommit("2\n")) == "warning"
    assert level(machine.kernel("6.1.0-18-amd64")) == "ok"
    assert level(machine.kernel("4.19.0")) == "warning"


def test_a_wrong_clock() -> None:
    now = 1_800_000_000.0
    assert level(machine.clock(now, True, 0.01)) == "ok"
    assert level(machine.clock(now, None, 0.0)) == "ok"
    assert level(machine.clock(now, False, 0.0)) == "warning"
    assert level(machine.clock(now, True, 16.0)) == "warning"
    assert level(machine.clock(1000.0, True, 0.0)) == "problem"
    is_synchronised, error_s = machine.clock_state()
    assert is_synchronised in (True, False, None)
    assert error_s >= 0


# The disk


def test_a_full_disk() -> None:
    assert level(disk.room(50 * GB, 100 * GB)) == "ok"
    assert level(disk.room(10 * GB, 100 * GB)) == "warning"
    assert level(disk.room(4 * GB, 100 * GB)) == "problem"
    assert level(disk.room(GB // 2, 2 * GB)) == "problem"
    assert level(disk.files(0, 0)) == "ok"
    assert level(disk.files(50, 100)) == "ok"
    assert level(disk.files(4, 100)) == "problem"


def test_the_kind_of_the_file_system() -> None:
    mounts = (
        "overlay / overlay rw 0 0\n/dev/a /data ext4 rw 0 0\ntmpfs /data/in\\040memory tmpfs rw 0 0\n"
        "/dev/b /data xfs rw 0 0\nserver:/x /database nfs4 rw 0 0\nsshfs /data/ssh fuse.sshfs rw 0 0\n"
    )
    kinds = {
        path: disk.file_system(Path(path), mounts)
        for path in ("/data/x", "/data/in memory/x", "/elsewhere", "/database", "/data/ssh/x")
    }
    assert list(kinds.values()) == ["xfs", "tmpfs", "overlay", "nfs4", "fuse.sshfs"]
    levels = [level(disk.kind_of_file_system(kind)) for kind in kinds.values()]
    assert levels == ["ok", "problem", "warning", "warning", "warning"]


def test_slow_syncs_and_syncs_that_do_nothing(tmp_path: Path) -> None:
    assert level(disk.sync_time([0.002] * 9 + [0.5], "ext4")) == "ok"
    assert level(disk.sync_time([0.020] * 9, "ext4")) == "warning"
    assert level(disk.sync_time([0.200] * 9, "ext4")) == "problem"
    assert level(disk.sync_time([0.000_001] * 9, "ext4")) == "warning"
    assert level(disk.sync_time([0.000_001] * 9, "tmpfs")) == "ok"
    assert 1 <= len(disk.syncs(tmp_path)) <= disk.SYNCS
    assert list(tmp_path.iterdir()) == []


def test_a_slow_disk_does_not_hold_the_doctor_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "SYNCS_S", 0.05)
    monkeypatch.setattr(os, "fsync", lambda _: time.sleep(0.03))
    assert len(disk.syncs(tmp_path)) == 2


def test_a_directory_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    assert disk.writable(tmp_path) is None
    monkeypatch.setattr(disk.tempfile, "TemporaryFile", refuse)
    assert level(disk.writable(tmp_path)) == "problem"
    assert [level(found) for found in disk.look(tmp_path / "none" / "below")][-1] == "problem"


# The settings


def test_settings_that_a_start_refuses_and_names_that_are_none() -> None:
    settings, findings = settings_findings.load({"TRIPTYCH_SHARDS": "0", "TRIPTYCH_RETENTON": "1d"})
    assert settings is None
    assert [level(found) for found in findings] == ["warning", "problem"]
    assert "TRIPTYCH_RETENTION" in findings[0].right
    assert "TRIPTYCH_SHARDS is 0" in findings[1].seen
    settings, findings = settings_findings.load({})
    assert [level(found) for found in findings] == ["ok"]


def test_budgets_beyond_the_memory_there_is() -> None:
    settings = Settings(queries_bytes_max=GB, workers=2)
    assert level(settings_findings.budgets(settings, 8 * GB)) == "ok"
    assert level(settings_findings.budgets(settings, 3_400_000_000)) == "warning"
    found = settings_findings.budgets(settings, 2 * GB)
    assert level(found) == "problem"
    assert "TRIPTYCH_QUERIES_BYTES_MAX 1.0 GB" in found.right


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ({"TRIPTYCH_BODY_BYTES_MAX": "1GB"}, "TRIPTYCH_BODY_BYTES_MAX"),
        ({"TRIPTYCH_DECOMPRESSED_BYTES_MAX": "1GB"}, "TRIPTYCH_DECOMPRESSED_BYTES_MAX"),
        ({"TRIPTYCH_LOG_RECORD_BYTES_MAX": "64MB"}, "TRIPTYCH_LOG_RECORD_BYTES_MAX"),
        ({"TRIPTYCH_LOG_BATCH_BYTES_MAX": "512MB"}, "TRIPTYCH_LOG_BATCH_BYTES_MAX"),
        ({"TRIPTYCH_QUERIES_BYTES_MAX": "64MB"}, "TRIPTYCH_QUERY_BYTES_MAX"),
        ({"TRIPTYCH_MEMORY_RESERVE_BYTES": "900TB"}, "TRIPTYCH_MEMORY_RESERVE_BYTES"),
        ({"TRIPTYCH_RETENTION": "1h"}, "TRIPTYCH_RETENTION"),
    ],
)
def test_settings_that_contradict_each_other(values: dict[str, str], name: str) -> None:
    assert [found.name for found in settings_findings.contradictions(load(values))] == [name]
    for found in settings_findings.contradictions(load(values)):
        assert level(found) in ("warning", "problem")


def test_defaults_contradict_nothing() -> None:
    assert list(settings_findings.contradictions(Settings(queries_bytes_max=GB))) == []
    assert list(settings_findings.dangers(Settings())) == []


def test_endless_retention_on_a_small_disk() -> None:
    assert level(settings_findings.retention(Settings(), 1000 * GB)) == "ok"
    found = settings_findings.retention(Settings(), 50 * GB)
    assert level(found) == "warning"
    assert "TRIPTYCH_RETENTION and TRIPTYCH_LOG_RETENTION 0" in found.seen
    bounded = Settings(retention_ms=86_400_000, log_retention_bytes=GB)
    assert level(settings_findings.retention(bounded, 50 * GB)) == "ok"
    assert level(settings_findings.retention(Settings(retention_bytes=60 * GB), 50 * GB)) == "problem"


def test_what_gives_something_up() -> None:
    settings = Settings(
        listen="0.0.0.0:1", admin_api=True, allowed_hosts=("*",), core_dumps=True, durability="buffered"
    )
    names = ["TRIPTYCH_ADMIN_API", "TRIPTYCH_ALLOWED_HOSTS", "TRIPTYCH_CORE_DUMPS", "TRIPTYCH_DURABILITY"]
    assert [found.name for found in settings_findings.dangers(settings)] == names
    assert {level(found) for found in settings_findings.dangers(settings)} == {"warning"}


# The data


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A data directory as it is before the first write."""
    path = tmp_path / "data"
    path.mkdir(mode=0o700)
    (path / "shards" / "0000").mkdir(parents=True)
    for place in (path / "shards", path / "shards" / "0000"):
        place.chmod(0o700)
    for file in (path / "manifest.json", path / "shards" / "manifest.json"):
        file.write_bytes(Manifest("c" * 32, 1).encode())
        file.chmod(0o600)
    return path


def found_in(directory: Path, shards: int | None = 1) -> dict[str, Finding]:
    return {found.name: found for found in data.look(directory, shards) if level(found)}


def troubles(directory: Path, shards: int | None = 1) -> dict[str, str]:
    return {name: found.level for name, found in found_in(directory, shards).items() if found.level != "ok"}


def test_a_whole_directory_is_well(directory: Path, tmp_path: Path) -> None:
    assert troubles(directory) == {}
    assert {"format", "modes", "use", "damage"} == set(found_in(directory))
    assert troubles(tmp_path / "none") == {}
    (tmp_path / "empty").mkdir()
    assert troubles(tmp_path / "empty") == {}


def test_what_is_no_data_directory(directory: Path, tmp_path: Path) -> None:
    assert troubles(directory / "manifest.json") == {"directory": "problem"}
    assert troubles(tmp_path) == {"directory": "warning"}


def test_a_format_that_a_start_refuses(directory: Path) -> None:
    assert troubles(directory, shards=8) == {"format": "problem"}
    assert "TRIPTYCH_SHARDS=1" in found_in(directory, shards=8)["format"].right
    assert troubles(directory, shards=None) == {}
    content = (directory / "manifest.json").read_bytes()
    (directory / "manifest.json").write_bytes(content[:-20])
    assert troubles(directory)["format"] == "problem"
    (directory / "manifest.json").unlink()
    assert "cp " in found_in(directory)["format"].right


def test_a_format_that_a_start_upgrades(directory: Path) -> None:
    put_back(directory)
    assert troubles(directory) == {"format": "warning"}
    found = found_in(directory)["format"]
    assert found.seen == "1, of an earlier release; the next start upgrades it to 2"
    assert found.right == "a backup before that: earlier releases refuse format 2"
    put_back(directory, 9)
    assert troubles(directory)["format"] == "problem"
    assert "it has format 9, and this program reads format 2" in found_in(directory)["format"].seen


def test_modes_owners_and_times(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "shards" / "0000").chmod(0o750)
    assert troubles(directory) == {"modes": "warning"}
    (directory / "shards" / "0000").chmod(0o700)
    os.utime(directory / "manifest.json", (time.time() + 3600,) * 2)
    assert troubles(directory) == {"times": "warning"}
    os.utime(directory / "manifest.json")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert troubles(directory) == {"owner": "problem"}


def test_damage_and_leftovers(directory: Path) -> None:
    for name in ("old.new", "shards/0000/x.damaged"):
        (directory / name).touch(mode=0o600)
    assert troubles(directory) == {"damage": "problem", "leftovers": "warning"}
    assert "shards/0000/x.damaged" in found_in(directory)["damage"].seen
    assert "old.new" in found_in(directory)["leftovers"].seen


def test_a_directory_in_use_is_left_to_its_cluster(directory: Path) -> None:
    (directory / "old.new").touch(mode=0o600)
    with open(directory / "workers.lock", "w") as lock:
        os.fchmod(lock.fileno(), 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert troubles(directory) == {}
        assert "in use" in found_in(directory)["use"].seen


def test_a_directory_that_cannot_be_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(data, "manifest", refuse)
    assert troubles(directory) == {"directory": "problem"}


def test_the_doctor_changes_nothing(directory: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]}
    list(report.examine(directory, None, lambda: Client("")))
    assert {path: path.stat().st_mtime_ns for path in [directory, *directory.rglob("*")]} == before


# A running cluster

READY = {"shard": 0, "state": "ready", "worker": "worker-0"}
METRICS = b'# HELP x\ntriptych_overload_level 0.0\ntriptych_shard_ready{shard="0"} 1.0\n'


def asked(**answers: Answer) -> dict[str, str]:
    """The troubles of a cluster that is well but for these answers, given by the last part of their paths."""
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
    state = json.dumps({"data": {"shards": [READY], "workers": [{}]}}).encode()
    well = {"cluster": state, "metrics": METRICS, "labels": b"{}", "count": b"{}", "stats": b"{}", "healthy": b""}
    replies = {name: Answer(200, body, date) for name, body in well.items()} | answers
    found = cluster.look(lambda path: replies[path.rpartition("/")[2]], "here")
    return {finding.name: level(finding) for finding in found if level(finding) != "ok"}


def test_a_cluster_that_is_well() -> None:
    assert asked() == {}


def test_a_cluster_that_does_not_answer() -> None:
    def refuse(_: str) -> Answer:
        raise ConnectionRefusedError("refused")

    assert [level(found) for found in cluster.look(refuse, "here")] == ["problem"]
    assert asked(healthy=Answer(403, b"{}")) == {"coordinator": "problem"}
    assert asked(cluster=Answer(401, b"who?")) == {"shards": "problem"}
    assert asked(metrics=Answer(401, b"who?")) == {"overload": "warning"}
    assert asked(count=Answer(503, b"no")) == {"answers": "warning"}
    assert asked(stats=Answer(403, b'{"message": "no role"}')) == {"answers": "warning"}


def test_a_shard_that_is_not_ready() -> None:
    shard = {"shard": 3, "state": "failed", "detail": "the store is damaged"}
    answer = Answer(200, json.dumps({"data": {"shards": [READY, shard], "workers": []}}).encode())
    assert asked(cluster=answer) == {"shard 3": "problem"}


@pytest.mark.parametrize(("overload", "expected"), [(1, "warning"), (2, "warning"), (3, "problem")])
def test_overload(overload: int, expected: str) -> None:
    assert asked(metrics=Answer(200, b"triptych_overload_level %d.0\n" % overload)) == {"overload": expected}


def test_answers_that_lack_something() -> None:
    warned = Answer(200, b'{"warnings": ["shard 1: a block is damaged"]}')
    assert asked(labels=warned, stats=warned) == {"answers": "problem"}


def test_another_clock() -> None:
    assert asked(healthy=Answer(200, b"", "Mon, 01 Jan 2024 00:00:00 GMT")) == {"clock": "warning"}
    assert asked(healthy=Answer(200, b"", "")) == {}


# The command


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    return cli.main(["doctor", *arguments]), capsys.readouterr().out


@pytest.fixture
def well(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is well, whatever this one is."""
    monkeypatch.setattr(machine, "look", lambda _: iter(()))
    monkeypatch.setattr(disk, "look", lambda _: iter(()))
    monkeypatch.setattr(settings_findings, "budgets", lambda *_: Finding("ok", "settings", "memory", "enough"))


@pytest.mark.usefixtures("well")
def test_exit_codes_and_output(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIPTYCH_SHARDS", "1")
    code, text = run(str(directory), capsys=capsys)
    assert code == 0, text
    assert text.splitlines()[-1].startswith("0 problems, ")
    (directory / "manifest.json").unlink()
    code, text = run(str(directory), "--json", capsys=capsys)
    content = json.loads(text)
    assert (code, content["well"]) == (1, False)
    assert {"level", "about", "name", "seen", "right"} == set(content["findings"][0])
    monkeypatch.setenv("TRIPTYCH_SHARDS", "no")
    assert run(str(directory), capsys=capsys)[0] == 1


@pytest.mark.usefixtures("well")
def test_an_examination_that_fails_ends_none_of_the_others(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Iterator[Finding]:
        raise OSError("no such file")
        yield

    monkeypatch.setattr(machine, "look", broken)
    _, text = run(str(directory), capsys=capsys)
    assert "warning  machine: examination" in text
    assert "ok       settings: settings" in text


@pytest.mark.usefixtures("well")
def test_names_of_files_cannot_write_lines_or_colours(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (b"line\nproblem  data", b"\x1b[31mred", b"no \xff text"):
        (directory / os.fsdecode(name + b".new")).touch(mode=0o644)
        _, text = run(str(directory), capsys=capsys)
        assert "\x1b" not in text
        assert all(line.startswith(("ok ", "warning ", "problem ", "   ")) for line in text.splitlines()[:-1])
        assert json.loads(run(str(directory), "--json", capsys=capsys)[1])
        (directory / os.fsdecode(name + b".new")).unlink()


def test_a_directory_whose_name_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run("/tmp/" + "x" * 300, capsys=capsys)
    assert code == 1
    assert "problem  data: examination" in text


@pytest.mark.usefixtures("well")
def test_a_url_that_is_none(
    capsys: pytest.CaptureFixture[str], directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url in ("ftp://x", "http://", "localhost:port", "http://127.0.0.1:1"):
        code, text = run(str(directory), "--url", url, capsys=capsys)
        assert code == 1, url
        assert "problem  cluster: coordinator" in text
    monkeypatch.setenv("TRIPTYCH_URL", "http://127.0.0.1:1")
    assert "problem  cluster: coordinator" in run(str(directory), capsys=capsys)[1]
