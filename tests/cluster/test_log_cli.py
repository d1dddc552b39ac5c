"""`triptych log …` against a running cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from datetime import datetime

import pytest

from loadtest.harness.cluster import ROOT, Cluster


def run(cluster: Cluster | None, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    url = cluster.url if cluster is not None else "http://127.0.0.1:1"
    command = [sys.executable, "-m", "coordinator.cli", "log", *arguments, "--url", url]
    return subprocess.run(command, input=stdin, capture_output=True, cwd=ROOT, timeout=60)


@pytest.fixture
def key() -> str:
    return f"cli-{uuid.uuid4().hex}"


def test_lines_of_the_input_become_records(cluster: Cluster, key: str) -> None:
    lines = b"".join(b"line %d\n" % i for i in range(2500))
    appended = run(cluster, "append", "--key", key, stdin=lines)
    assert (appended.returncode, appended.stdout) == (0, b"2500 records appended\n"), appended.stderr
    assert run(cluster, "scan", "--key", key, "--values").stdout == lines
    newest = run(cluster, "scan", "--key", key, "--values", "--reverse", "--limit", "2").stdout
    assert newest == b"line 2499\nline 2498\n"


def test_key_and_value_may_be_on_the_line(cluster: Cluster, key: str) -> None:
    lines = f"{key}/b\tone\n{key}/a\ttwo\n{key}/b\tthree\n".encode()
    assert run(cluster, "append", "--separator", "\t", stdin=lines).returncode == 0
    assert run(cluster, "keys", "--prefix", key).stdout == f"{key}/a\n{key}/b\n".encode()
    rows = [line.split(b"\t") for line in run(cluster, "scan", "--prefix", key).stdout.splitlines()]
    assert [value for _, _, value in rows] == [b"one", b"two", b"three"]
    found = json.loads(run(cluster, "scan", "--prefix", key, "--limit", "1", "--json").stdout)
    assert found.keys() == {"sequence", "key", "value", "timeMs"}


def test_records_are_printed_with_their_times_and_chosen_by_them(cluster: Cluster, key: str) -> None:
    for value in (b"one\n", b"two\n"):
        assert run(cluster, "append", "--key", key, stdin=value).returncode == 0
    rows = [line.split(b"\t") for line in run(cluster, "scan", "--key", key, "--times").stdout.splitlines()]
    assert [(row[2], row[3]) for row in rows] == [(key.encode(), b"one"), (key.encode(), b"two")]
    second = rows[1][1].decode()
    assert datetime.fromisoformat(second).timestamp() == pytest.approx(time.time(), abs=30)
    assert run(cluster, "scan", "--key", key, "--values", "--since", second).stdout == b"two\n"
    assert run(cluster, "scan", "--key", key, "--values", "--until", second).stdout == b"one\n"
    tailed = run(cluster, "tail", "--key", key, "--values", "--times", "--since", second, "--limit", "1")
    assert tailed.stdout == f"{second}\ttwo\n".encode()


def test_tail_prints_what_is_appended(cluster: Cluster, key: str) -> None:
    late = threading.Timer(2.0, run, (cluster, "append", "--key", key), {"stdin": b"a\nb\n"})
    late.start()
    started = time.monotonic()
    tailed = run(cluster, "tail", "--key", key, "--start", "0", "--values", "--limit", "2")
    late.join()
    assert tailed.stdout == b"a\nb\n"
    assert time.monotonic() - started < 30


def test_errors_are_one_line(cluster: Cluster, key: str) -> None:
    missing = run(cluster, "append", "--separator", "\t", stdin=b"no tab here\n")
    assert (missing.returncode, missing.stderr) == (1, b"triptych: line 1 has no '\\t' between key and value\n")
    refused = run(cluster, "scan", "--prefix", key, "--reverse")
    assert refused.returncode == 1
    assert refused.stderr.startswith(b"triptych: parameter 'reverse'")
    absent = run(None, "keys")
    assert absent.returncode == 1
    assert absent.stderr.startswith(b"triptych: http://127.0.0.1:1 does not answer: ")


def test_json_lines_are_stored_compact_and_what_is_not_json_is_refused(cluster: Cluster, key: str) -> None:
    lines = b'{"level": "error", "n": 1.0}\n {"level": "info",  "n": 2}\n"text"\n'
    assert run(cluster, "append", "--key", key, "--json", stdin=lines).returncode == 0
    expected = b'{"level":"error","n":1.0}\n{"level":"info","n":2}\n"text"\n'
    assert run(cluster, "scan", "--key", key, "--values").stdout == expected
    shown = run(cluster, "scan", "--key", key, "--json", "--encoding", "json", "--limit", "1").stdout
    record = json.loads(shown)
    assert (record["keyText"], record["json"]) == (key, {"level": "error", "n": 1.0})
    for line in (b"{broken", b'"\xff"', b"", b"[" * 5000):
        refused = run(cluster, "append", "--key", key, "--json", stdin=b"1\n" + line + b"\n")
        assert refused.returncode == 1
        assert refused.stderr.startswith(b"triptych: the value of line 2 is not JSON: "), refused.stderr


def test_values_can_be_searched(cluster: Cluster, key: str) -> None:
    lines = b"".join(b'{"level":"%b","n":%d}\n' % (b"error" if n % 4 == 0 else b"info", n) for n in range(20))
    assert run(cluster, "append", "--key", key, "--json", stdin=lines).returncode == 0

    def numbers(command: str, *arguments: str) -> list[int]:
        out = run(cluster, command, "--key", key, "--values", *arguments).stdout
        return [json.loads(line)["n"] for line in out.splitlines()]

    assert numbers("scan", "--grep", "error") == [0, 4, 8, 12, 16]
    assert numbers("scan", "--grep-not", "error|info.*[0-7]}", "--limit", "2") == [9, 18]
    assert numbers("scan", "--where", '$.level = "error" and $.n > 4', "--reverse") == [16, 12, 8]
    assert numbers("tail", "--start", "0", "--limit", "2", "--where", "$.n >= 18") == [18, 19]
    refused = run(cluster, "scan", "--key", key, "--grep", "(")
    assert refused.stderr.startswith(b"triptych: parameter 'grep' is '(', which is refused: ")
