"""`triptych query`, `write`, `vector` and `status` against a running cluster."""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from coordinator import cli
from loadtest.harness.cluster import Cluster

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command with this input: (exit code, output, messages)."""
    monkeypatch.setenv("TRIPTYCH_URL", cluster.url)

    def command(*arguments: str, given: str | bytes = b"") -> tuple[int, str, str]:
        content = given.encode() if isinstance(given, str) else given
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        code = cli.main(arguments)
        return code, *capsys.readouterr()

    return command


@pytest.fixture
def name() -> str:
    return f"cli_{uuid4().hex}"


def test_samples_are_written_and_queried(run: Run, name: str) -> None:
    text = f'# TYPE {name} counter\n# HELP {name} Of a test\n{name}{{n="1"}} 1.5\n{name}{{n="2"}} NaN\n\n{name} 3\n'
    assert run("write", "--label", "job=cli", given=text) == (0, "3 samples written\n", "")
    code, output, messages = run("query", f'{name}{{job="cli", n!="2"}}')
    assert (code, messages) == (0, "")
    assert sorted(output.splitlines()) == [f'{name}{{job="cli", n="1"}}\t1.5', f'{name}{{job="cli"}}\t3']
    assert run("query", f"count({name}) + 1", "--json")[0] == 0
    assert run("query", f'scalar({name}{{n="1"}})')[1] == "1.5\n"
    assert run("query", "nothing_has_this_name") == (0, "", "no series\n")


def test_the_type_of_a_metric_is_stored(run: Run, cluster: Cluster, name: str) -> None:
    run("write", given=f"# TYPE {name} counter\n# HELP {name} Of a test\n{name} 1\n")
    assert cluster.get("/api/v1/metadata", metric=name).json()["data"] == {
        name: [{"type": "counter", "help": "Of a test", "unit": ""}]
    }


def test_a_range_is_queried_with_a_step_of_its_own(run: Run, name: str) -> None:
    lines = f'{{"metric": {{"__name__": "{name}"}}, "values": [1, 2, 3], "timestamps": [100000, 200000, 300000]}}\n'
    assert run(
        "write",
        given=lines,
    ) == (0, "3 samples written\n", "")
    code, output, _ = run("query", name, "--start", "100", "--end", "1970-01-01T00:05:00Z", "--step", "100")
    times = ("1970-01-01T00:01:40Z", "1970-01-01T00:03:20Z", "1970-01-01T00:05:00Z")
    assert (code, output) == (0, "".join(f"{name}\t{at}\t{n}\n" for n, at in enumerate(times, 1)))
    assert run("query", name, "--time", "300", "--json")[1] == run("query", name, "--time", "300", "--json")[1]
    data = json.loads(run("query", f"{name}[5m]", "--time", "300", "--json")[1])["data"]
    assert data["result"][0]["values"] == [[100, "1"], [200, "2"], [300, "3"]]
    points = run("query", "time()", "--start", "-10m")[1].splitlines()
    assert 50 < len(points) <= 101


def test_what_is_refused_is_named_and_the_rest_is_stored(run: Run, name: str) -> None:
    text = f'{name} 1\n{name} one\n{name}{{a="1",a="2"}} 3\n'
    code, output, messages = run("write", given=text)
    assert (code, output) == (3, "1 sample written\n")
    assert messages.splitlines() == [
        "triptych: line 2: 'one' is not a number",
        "triptych: line 3: the label 'a' appears twice",
    ]
    code, output, messages = run("write", "--json", given='{"a b"="\\x"} 1\n{"metric": {"": "x"}, "value": 1}\n')
    assert code == 1, messages
    assert json.loads(output) == {"samplesWritten": 0, "problems": 2}
    code, output, messages = run("write", given="".join(f"{n} x\n" for n in range(30)))
    assert code == 1
    assert messages.splitlines()[-1] == "triptych: 20 more lines were refused"


def test_a_file_of_many_samples_is_written_whole(run: Run, name: str, tmp_path: Path) -> None:
    text = "".join(f'{name}{{n="{n % 100}"}} {n} {1_000_000 + n}\n' for n in range(25_000))
    assert run("write", given=text)[1] == "25000 samples written\n"
    assert run("query", f"sum(count_over_time({name}[1d]))", "--time", "1100")[1] == "{}\t25000\n"


def test_a_plan_names_what_shards_did(run: Run, name: str) -> None:
    run("write", given=f"{name} 1\n")
    code, output, _ = run("query", f"sum({name}) / 2", "--explain")
    assert code == 0
    assert output.startswith(f"coordinator: sum({name}) / 2")
    assert "└─ " in output and "shards: " in output


def test_a_wrong_query_is_code_1(run: Run) -> None:
    code, output, messages = run("query", "sum(")
    assert (code, output) == (1, "")
    assert messages.startswith("triptych: 1:4: parse error")


def test_vectors_are_upserted_searched_got_counted_and_deleted(run: Run, name: str, tmp_path: Path) -> None:
    here = ("--collection", name)
    assert run("vector", "create", name, "--dimension", "2", "--text-field", "body")[0] == 0
    lines = (
        '{"id": "a", "vector": [1, 0], "body": "quick fox"}\n\n'
        '{"id": "b", "attributes": {"vector": [0, 1], "n": 2}}\n{"id": "c", "vector": [-1, 0]}'
    )
    path = tmp_path / "lines.jsonl"
    path.write_text(lines)
    assert run("vector", "upsert", str(path), *here) == (0, "3 vectors upserted\n", "")
    assert run("vector", "upsert", "--json", *here, given=lines)[1] == '{"vectorsUpserted":3}\n'
    assert run("vector", "search", "--vector", "[1, 0.1]", "-k", "1", *here)[1].split("\t")[1:] == [
        "a", '{"body": "quick fox"}\n'
    ]  # fmt: skip
    (tmp_path / "query.txt").write_text("0.1 1\n")
    assert run("vector", "search", "--file", str(tmp_path / "query.txt"), "-k", "1", *here)[1].split("\t")[1] == "b"
    assert run("vector", "search", "--text", "fox", "--field", "body", *here)[1].split("\t")[1] == "a"
    assert run("vector", "search", "--id", "a", "-k", "1", "--include", "n", *here)[1].split("\t")[1] == "b"
    assert run("vector", "count", *here)[1] == "3\n"
    assert run("vector", "count", "--filter", '{"eq": {"field": "n", "value": 2}}', *here)[1] == "1\n"
    assert run("vector", "get", "b", *here)[:2] == (0, 'b\t{"n": 2}\n')
    code, output, messages = run("vector", "get", "b", "z", "--json", *here)
    assert (code, messages) == (3, "triptych: there is no vector 'z'\n")
    (vector,) = json.loads(output)["vectors"]
    assert run("vector", "upsert", *here, given=json.dumps(vector))[0] == 0  # what is got can be written again
    assert run("vector", "get", "z", *here)[0] == 1
    row = next(line for line in run("vector", "collections")[1].splitlines() if line.startswith(name))
    assert row.split("\t")[1:5] == ["3", "2", "cosine", "f32"]
    assert run("vector", "delete", "a", "z", *here)[1] == "1 vector deleted\n"
    assert run("vector", "delete", "--filter", '{"exists": {"field": "n"}}', *here)[1] == "1 vector deleted\n"
    assert run("vector", "drop", name) == (0, f"collection {name} is deleted\n", "")
    assert run("vector", "count", *here)[0] == 1


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ('{"id": "a", "vector": [1, 0]}\n{"id": "b", "vector": [1]}\n', "the batch that begins at line 1 is refused: "),
        ('\n{"vector": [1]}', "line 2 has no id"),
        ("[]", "line 1 is not a JSON object"),
        ("{", "line 1 is not a JSON object"),
        (b'{"id": "\xff"}', "line 1 is not a JSON object"),
        ("[" * 5000, "line 1 is not a JSON object"),
    ],
)
def test_a_wrong_vector_is_named_by_its_line(run: Run, name: str, lines: str | bytes, says: str) -> None:
    run("vector", "create", name, "--dimension", "2")
    code, output, messages = run("vector", "upsert", "--collection", name, given=lines)
    assert (code, output) == (1, "")
    assert messages.startswith(f"triptych: {says}"), messages
    run("vector", "drop", name)


def test_keys_and_groups_of_the_log_may_be_json(run: Run, name: str) -> None:
    assert run("log", "append", "--separator", "\t", given=f"{name}/a\t1\n{name}/b\t2\n")[0] == 0
    code, output, _ = run("log", "keys", "--prefix", name, "--json")
    assert (code, len(json.loads(output)["keys"])) == (0, 2)
    assert "groups" in json.loads(run("log", "groups", "--json")[1])


def test_status_shows_workers_and_shards(run: Run, cluster: Cluster) -> None:
    code, output, _ = run("status")
    assert code == 0
    *workers, last = output.splitlines()
    assert last == "4 of 4 shards are ready"
    assert {line.split("\t")[0]: int(line.split("\t")[1]) for line in workers} == cluster.worker_pids()
    assert all(line.split("\t")[2] == "2 ready" for line in workers)
    assert json.loads(run("status", "--json")[1])["data"]["ready"]


class Replies(BaseHTTPRequestHandler):
    """Answers with those of `replies` in turn: (status, content, headers)."""

    replies: list[tuple[int, Any, dict[str, str]]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, content, headers = self.replies.pop(0)
        body = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for header, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def replying() -> Any:
    """A server that gives these answers."""
    servers: list[ThreadingHTTPServer] = []

    def start(*replies: tuple[int, Any, dict[str, str]]) -> str:
        handler = type("Handler", (Replies,), {"replies": list(replies)})
        servers.append(server := ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_samples_are_sent_again_while_the_cluster_is_away(run: Run, replying: Any) -> None:
    away = (503, {"status": "error", "error": "shard 1 is down"}, {})
    written = {"X-Prometheus-Remote-Write-Samples-Written": "2"}
    url = replying(away, away, (204, None, written))
    code, output, messages = run("write", "--url", url, given="a 1\nb 2\n")
    assert (code, output) == (0, "2 samples written\n")
    assert messages.splitlines() == ["triptych: shard 1 is down; trying again", "triptych: resuming"]


def test_a_cluster_that_stays_away_is_code_1(run: Run, replying: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from coordinator.commands import vector_upsert

    monkeypatch.setattr(vector_upsert, "PATIENCE_S", 0.2)
    url = replying(*[(429, {"status": "error", "message": "too many"}, {})] * 20)
    began = time.monotonic()
    code, output, messages = run("vector", "upsert", "--url", url, given='{"id": "a", "vector": [1]}')
    assert (code, output, messages.splitlines()[-1]) == (1, "", "triptych: too many")
    assert time.monotonic() - began < 5


def test_an_answer_with_warnings_is_code_3(run: Run, replying: Any) -> None:
    data = {"resultType": "vector", "result": [{"metric": {}, "value": [1, "1"]}]}
    answer = {"status": "success", "data": data, "warnings": ["shard 1 is \x1b[31mmissing"], "infos": ["a hint"]}
    code, output, messages = run("query", "up", "--url", replying((200, answer, {})))
    assert (code, output) == (3, "{}\t1\n")
    assert messages == "warning: shard 1 is \\x1b[31mmissing\ninfo: a hint\n"


@pytest.mark.parametrize("status", [200, 404, 502])
def test_another_program_at_the_address_is_named(run: Run, replying: Any, status: int) -> None:
    url = replying((status, None, {}))
    code, _, messages = run("query", "up", "--url", url)
    assert (code, messages) == (1, f"triptych: {url} answers with status {status} and what is not JSON\n")
