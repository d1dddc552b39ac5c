"""Who gets in, with real processes and clients: roles, certificates, senders, files that change, and floods."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from coordinator import cli
from loadtest.harness.cluster import Cluster
from tests.cluster.prometheus import needs_prometheus, prometheus, scraping
from tests.cluster.secured import ALICE, HEAD_TIMEOUT_S, PASSWORD, Files, bearer, hashed

TOKENS = {
    "reader": 'metrics = "read"\nlog = "read"\nvectors = "read"',
    "writer": 'metrics = "write"\nlog = "write"',
    "slow": 'metrics = "read"\nrequests_per_second = 2',
    "small": 'log = "read"\nshare = 1',
}
JSON = {"Content-Type": "application/json"}
SILENT, HALF = 1000, 100


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("secured"))
    headers = "http_server_config:\n  headers:\n    X-Frame-Options: deny\n"
    made.write_web(rest=f"{headers}basic_auth_users:\n  alice: {hashed(PASSWORD)}\n")
    made.write_tokens(TOKENS)
    return made


@pytest.fixture(scope="module")
def server(files: Files) -> Iterator[Cluster]:
    running = files.cluster(TRIPTYCH_LOG_FOLLOWERS_MAX="300").start()
    yield running
    running.stop()


def ask(server: Cluster, path: str, authorization: str = "", method: str = "GET", body: bytes | None = None) -> Any:
    headers = JSON | ({"Authorization": authorization} if authorization else {})
    return server.request(method, path, body, headers)


def secure_socket(
    server: Cluster, context: ssl.SSLContext | None = None, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    tls = context or server.tls
    assert tls is not None
    plain = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    return tls.wrap_socket(plain, server_hostname="localhost", session=session)


def wait_until(condition: Callable[[], bool], within_s: float = 10.0) -> None:
    give_up = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.05)


QUERY = "/api/v1/query?query=1"
RECORDS = json.dumps({"records": [{"key": b64encode(b"k").decode(), "value": "dg=="}]}).encode()


@pytest.mark.parametrize(
    ("method", "path", "reader", "writer"),
    [
        ("GET", QUERY, 200, 200),
        ("POST", QUERY, 200, 200),
        ("HEAD", QUERY, 200, 200),
        ("GET", "/api/v1/labels", 200, 200),
        ("POST", "/api/v1/write", 403, 400),
        ("GET", "/api/v1/log/count?key=k", 200, 200),
        ("POST", "/api/v1/log/append", 403, 200),
        ("PUT", "/api/v1/log/cursors/c", 403, 400),
        ("POST", "/api/v1/vector/search", 400, 403),
        ("POST", "/api/v1/vector/write", 403, 403),
        ("DELETE", "/api/v1/vector/collections/default", 403, 403),
        ("GET", "/metrics", 200, 200),
        ("GET", "/api/v1/status/buildinfo", 200, 200),
        ("GET", "/api/v1/cluster", 200, 200),
        ("GET", "/nowhere", 404, 404),
        ("DELETE", "/api/v1/query", 405, 405),
    ],
)
def test_a_request_needs_the_role_of_its_route(
    server: Cluster, method: str, path: str, reader: int, writer: int
) -> None:
    body = {"POST": RECORDS if "log" in path else b"{}", "PUT": b"{}"}.get(method)
    if "query" in path:
        body = None
    assert ask(server, path, "", method, body).status == 401
    assert ask(server, path, bearer("reader"), method, body).status == reader
    assert ask(server, path, bearer("writer"), method, body).status == writer
    assert ask(server, path, ALICE, method, body).status not in (401, 403)


def test_refusals_have_the_envelope_of_their_area_and_say_what_would_be_right(server: Cluster) -> None:
    refused = ask(server, QUERY)
    assert refused.json()["errorType"] == "bad_data"
    assert "send one with Basic or Bearer" in refused.json()["error"]
    assert refused.headers["x-frame-options"] == "deny"
    connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
    connection.request("GET", QUERY)
    challenges = connection.getresponse().headers.get_all("WWW-Authenticate")
    connection.close()
    assert challenges == ['Basic realm="triptych", charset="UTF-8"', 'Bearer realm="triptych"']
    forbidden = ask(server, "/api/v1/log/append", bearer("reader"), "POST", RECORDS)
    assert forbidden.json()["message"] == (
        "the token reader has not the role write in the area log, which this request needs"
    )


def test_health_is_open_and_a_wrong_credential_does_not_close_it(server: Cluster) -> None:
    for authorization in ("", "Bearer x", bearer("nobody"), ALICE):
        assert ask(server, "/-/healthy", authorization).status == 200
        assert ask(server, "/-/ready", authorization).status == 200


def test_a_token_in_the_address_does_not_count(server: Cluster) -> None:
    token = bearer("reader").removeprefix("Bearer ")
    assert ask(server, f"{QUERY}&access_token={token}").status == 401


def test_a_body_is_not_asked_for_before_the_credential_is_known(server: Cluster) -> None:
    with secure_socket(server) as secure:
        secure.sendall(
            b"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        assert secure.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_a_token_has_its_rate(server: Cluster) -> None:
    statuses = Counter(ask(server, QUERY, bearer("slow")).status for _ in range(10))
    assert statuses[503] >= 5
    assert statuses[200] >= 2


def test_a_token_has_its_share_of_followers_whatever_connections_it_uses(server: Cluster) -> None:
    """One percent of 300."""
    follow = "/api/v1/log/scan?key=nothing&follow=true&timeout=2"
    statuses: Counter[int] = Counter()

    def read() -> None:
        statuses[ask(server, follow, bearer("small")).status] += 1

    threads = [threading.Thread(target=read) for _ in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: statuses[503] == 2)
    assert ask(server, follow.replace("timeout=2", "timeout=0"), bearer("reader")).status == 200
    for thread in threads:
        thread.join()
    assert statuses == {200: 3, 503: 2}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: localhost\r\nno header\r\n", 400),
        (f"GET {QUERY}%zz HTTP/1.1\r\nHost: localhost\r\n", 400),
        (f"GET {QUERY} HTTP/1.1\r\nHost: foreign.example\r\n", 403),
        (f"GET {QUERY} HTTP/1.1\r\nHost: localhost\r\n", 401),
        ("GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n", 200),
    ],
)
def test_every_answer_has_the_headers_of_the_file(server: Cluster, lines: str, status: int) -> None:
    with secure_socket(server) as secure:
        secure.sendall(f"{lines}\r\n".encode())
        head = secure.recv(65536).partition(b"\r\n\r\n")[0].lower()
    assert head.split()[1] == b"%d" % status
    assert head.count(b"x-frame-options: deny") == 1


def test_refusals_of_overload_have_the_headers_of_the_file(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write_web(rest="http_server_config:\n  headers:\n    X-Frame-Options: deny\n")
    cluster = files.cluster(with_tokens=False, TRIPTYCH_MEMORY_RESERVE_BYTES="1000000GB").start()
    try:
        with secure_socket(cluster) as secure:
            secure.sendall(b"POST /api/v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
            head = secure.recv(65536).lower()
        assert head.startswith(b"http/1.1 503 ")
        assert b"\r\nserver:" not in head  # as early as it can be
        assert head.count(b"x-frame-options: deny") == 1
    finally:
        cluster.stop()


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
    assert b"the token reader has not the role write" in sender.log.read_bytes()


def test_files_change_under_load(server: Cluster, files: Files) -> None:
    """A token that stays is never refused; a new one gets in, a removed one is out, also on its open connection; a file
    that cannot be used changes nothing."""
    statuses: Counter[int] = Counter()
    stop = threading.Event()

    def load() -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
        while not stop.is_set():
            connection.request("GET", QUERY, headers={"Authorization": bearer("reader")})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1

    thread = threading.Thread(target=load)
    thread.start()
    removed = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)

    def of_removed() -> int:
        removed.request("GET", QUERY, headers={"Authorization": bearer("writer")})
        answer = removed.getresponse()
        answer.read()
        return answer.status

    def is_valid() -> bool:
        return b"triptych_access_files_valid 1.0" in ask(server, "/metrics", ALICE).body

    try:
        assert of_removed() == 200
        files.write_tokens({"reader": TOKENS["reader"], "new": 'metrics = "read"'})
        wait_until(lambda: ask(server, QUERY, bearer("new")).status == 200)
        assert of_removed() == 401
        (files.directory / "tokens.toml").write_text("[new")
        wait_until(lambda: not is_valid())
        assert ask(server, QUERY, bearer("new")).status == 200
        files.write_tokens(TOKENS)
        web = (files.directory / "web.yml").read_text()
        (files.directory / "web.yml").write_text("")  # neither TLS nor users
        wait_until(lambda: "TLS would be off; that needs a restart" in server.log("coordinator"))
        (files.directory / "web.yml").write_text(web)
        wait_until(is_valid)
        assert of_removed() == 200
    finally:
        stop.set()
        thread.join()
        removed.close()
    assert set(statuses) == {200}


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_sessions_are_resumed_also_with_a_new_certificate(
    server: Cluster, files: Files, version: ssl.TLSVersion
) -> None:
    context = files.client()
    context.minimum_version = context.maximum_version = version

    def connect(session: ssl.SSLSession | None) -> tuple[bool, ssl.SSLSession | None, bytes | None]:
        with secure_socket(server, context, session) as secure:
            secure.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
            secure.recv(4096)
            return bool(secure.session_reused), secure.session, secure.getpeercert(True)

    is_resumed, session, _ = connect(None)
    assert not is_resumed
    assert connect(session)[0]
    expected = ssl.PEM_cert_to_DER_cert(files.new_certificate().cert_chain_pems[0].bytes().decode())
    wait_until(lambda: connect(None)[2] == expected)
    assert connect(session)[0]


def test_the_metrics_say_when_the_certificate_in_use_ends(server: Cluster, files: Files) -> None:
    def ends_at() -> float:
        lines = ask(server, "/metrics", ALICE).body.decode().splitlines()
        name = "triptych_tls_certificate_expiry_timestamp_seconds "
        return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))

    end = datetime(2037, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert ends_at() > end.timestamp()
    files.new_certificate(end)
    wait_until(lambda: ends_at() == end.timestamp())
    files.new_certificate()


def test_a_flood_of_wrong_passwords_does_not_reach_those_who_are_known(server: Cluster) -> None:
    stop = threading.Event()
    statuses: Counter[int] = Counter()

    def guess(number: int) -> None:
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
        for attempt in range(100_000):
            if stop.is_set():
                break
            guessed = b64encode(f"alice:{number}-{attempt}".encode()).decode()
            connection.request("GET", QUERY, headers={"Authorization": f"Basic {guessed}"})
            answer = connection.getresponse()
            answer.read()
            statuses[answer.status] += 1
        connection.close()

    assert ask(server, QUERY, bearer("reader")).status == 200
    threads = [threading.Thread(target=guess, args=(number,)) for number in range(6)]
    victim = http.client.HTTPSConnection("127.0.0.1", server.port, context=server.tls)
    for thread in threads:
        thread.start()
    try:
        took = []
        for _ in range(100):
            started = time.perf_counter()
            victim.request("GET", QUERY, headers={"Authorization": bearer("reader")})
            answer = victim.getresponse()
            assert (answer.status, answer.read()) and answer.status == 200
            took.append(time.perf_counter() - started)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        victim.close()
    assert set(statuses) == {401, 503}
    assert sorted(took)[50] < 0.1


def test_handshakes_that_are_not_finished_shut_nobody_out_and_end_in_time(server: Cluster, files: Files) -> None:
    hello = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        files.client().wrap_bio(ssl.MemoryBIO(), hello, server_hostname="localhost").do_handshake()
    client_hello = hello.read()
    with ExitStack() as stack:
        flood = []
        for number in range(SILENT + HALF):
            flood.append(stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=10)))
            if number >= SILENT:
                flood[-1].sendall(client_hello)
        started = time.perf_counter()
        assert ask(server, QUERY, ALICE).status == 200
        assert time.perf_counter() - started < 2.0
        deadline = time.monotonic() + HEAD_TIMEOUT_S + 4
        for one in flood:
            one.settimeout(max(0.1, deadline - time.monotonic()))
            with suppress(ConnectionResetError):
                while one.recv(65536):
                    pass
    assert ask(server, QUERY, ALICE).status == 200


def test_secrets_are_in_no_log_and_no_answer(server: Cluster) -> None:
    secret = bearer("reader").split()[1]
    answers = [
        ask(server, path, bearer("reader")).body
        for path in ("/metrics", "/api/v1/cluster", f"{QUERY}&explain=true", "/api/v1/query?query=%7B")
    ]
    for line in (
        f"Authorization: {secret}\x01",
        f"Authorization : {secret}",
        f"Authorization: {secret}" + "x" * 70_000,
    ):
        with secure_socket(server) as secure, suppress(OSError):
            secure.sendall(f"GET {QUERY} HTTP/1.1\r\nHost: localhost\r\n{line}\r\n\r\n".encode())
            answers.append(secure.recv(65536))
    texts = [answer.decode() for answer in answers] + [server.log("coordinator"), server.log("worker")]
    for text in texts:
        assert "Secret-" not in text
        assert PASSWORD not in text
        assert "$2b$" not in text


def test_mutual_tls_lets_in_whoever_shows_a_certificate_with_an_allowed_name(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write_web(
        "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
        "  client_allowed_sans: [agent.example, 10.0.0.1]\n"
    )
    right = files.client(files.ca.issue_cert("agent.example"))
    cluster = files.cluster(with_tokens=False)
    cluster.tls = right
    cluster.start()
    try:
        assert cluster.get(QUERY).status == 200
        cluster.tls = files.client(files.ca.issue_cert("10.0.0.1"))
        assert cluster.get(QUERY).status == 200
        stranger = trustme.CA().issue_cert("agent.example")
        for wrong in (None, files.ca.issue_cert("other.example"), stranger):
            cluster.tls = files.client(wrong)
            with pytest.raises(OSError):
                cluster.get(QUERY)
        cluster.tls = right
        assert cluster.get(QUERY).status == 200
    finally:
        cluster.stop()
