"""How clients get in: curl, the commands, the doctor and Prometheus."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

from coordinator import cli
from loadtest.harness.cluster import Cluster
from tests.cluster.prometheus import needs_prometheus, prometheus, scraping
from tests.cluster.secured import (
    ALICE,
    PASSWORD,
    QUERY,
    RECORDS,
    Files,
    ask,
    bearer,
)


def test_curl_gets_in(server: Cluster, files: Files) -> None:
    curl = ["curl", "-sS", "--max-time", "10", "--cacert", str(files.ca_file), "-o", "/dev/null", "-w", "%{http_code}"]
    url = f"{server.url}{QUERY}"
    for options, status in (
        ([], "401"),
        (["-u", f"alice:{PASSWORD}"], "200"),
        (["-u", "alice:wrong"], "401"),
        (["-H", f"Authorization: {bearer('reader')}"], "200"),
        (["--tlsv1.2", "--tls-max", "1.2", "-u", f"alice:{PASSWORD}"], "200"),
    ):
        assert subprocess.run([*curl, *options, url], capture_output=True, text=True).stdout == status


def test_plain_http_is_told_so(server: Cluster) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as plain:
        plain.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: plain.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.0 400 ")
    assert answer.endswith(b"Client sent an HTTP request to an HTTPS server.\n")


def test_commands_use_a_token_and_the_authority(
    server: Cluster, files: Files, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert ask(server, "/api/v1/log/append", bearer("writer"), "POST", RECORDS).status == 200
    file = tmp_path / "token"
    command = ["log", "keys", "--url", server.url, "--ca", str(files.ca_file), "--token-file", str(file)]
    for authorization, code in ((bearer("reader").split()[1], 0), (f"alice:{PASSWORD}", 0), ("triptych.a.b", 1)):
        file.write_text(authorization)
        assert cli.main(command) == code
        assert capsysbinary.readouterr().out == (b"k\n" if code == 0 else b"")


def test_the_doctor_asks_a_secured_cluster(
    server: Cluster, files: Files, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def findings(*options: str) -> dict[str, dict[str, str]]:
        """Those about the cluster that are not well, by name."""
        cli.main(["doctor", str(tmp_path / "none"), "--url", server.url, "--json", *options])
        content = json.loads(capsys.readouterr().out)["findings"]
        return {one["name"]: one for one in content if one["about"] == "cluster" and one["level"] != "ok"}

    ca = ("--ca", str(files.ca_file))
    file = tmp_path / "token"
    file.write_text(f"alice:{PASSWORD}")
    assert findings(*ca, "--token-file", str(file)) == {}
    monkeypatch.setenv("TRIPTYCH_TOKEN", bearer("reader").split()[1])
    assert findings(*ca) == {}
    monkeypatch.setenv("TRIPTYCH_TOKEN", bearer("writer").split()[1])
    assert "role read in the area vectors" in findings(*ca)["answers"]["right"]
    monkeypatch.delenv("TRIPTYCH_TOKEN")
    assert "--token-file" in findings(*ca)["shards"]["right"]
    assert "--ca" in findings()["coordinator"]["right"]
    assert "cannot be read" in findings("--token-file", str(tmp_path / "none"))["coordinator"]["seen"]


@needs_prometheus
def test_prometheus_writes_with_a_password_and_with_a_token(server: Cluster, files: Files, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    writes = [
        {
            "url": f"{server.url}/api/v1/write",
            "tls_config": {"ca_file": str(files.ca_file)},
            "write_relabel_configs": [{"target_label": "via", "replacement": via}],
            **credentials,
        }
        for via, credentials in (
            ("basic", {"basic_auth": {"username": "alice", "password": PASSWORD}}),
            ("bearer", {"authorization": {"credentials": bearer("writer").split()[1]}}),
            ("reader", {"authorization": {"credentials": bearer("reader").split()[1]}}),
        )
    ]

    def ways() -> set[str]:
        body = ask(server, "/api/v1/query?query=count%20by%20(via)%20(up)", ALICE).json()
        return {one["metric"]["via"] for one in body["data"]["result"]}

    with prometheus(tmp_path, scraping(f"127.0.0.1:{port}", *writes), port=port) as sender:
        sender.wait_for(lambda: {"basic", "bearer"} <= ways())
    assert ways() == {"basic", "bearer"}
    assert b"the token reader does not have the role write" in sender.log.read_bytes()
