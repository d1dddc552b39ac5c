"""Certificates: sessions that are resumed, renewal, mutual TLS, and handshakes that are not finished."""

from __future__ import annotations

import socket
import ssl
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme

from loadtest.harness.cluster import Cluster
from tests.cluster.secured import (
    ALICE,
    HEAD_TIMEOUT_S,
    QUERY,
    Files,
    ask,
    secure_socket,
    wait_until,
)

SILENT, HALF = 1000, 100


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
