"""`make bench-access`: the cost of tokens, TLS and handshakes in CPU time of the coordinator.

Three clusters (open, with a token, with a token over TLS) receive the same requests in turns, so that other load on the
machine affects all of them alike.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import trustme

from coordinator.access.tokens import mint
from loadtest.harness.cluster import Cluster
from loadtest.harness.http_messages import message

CONNECTIONS = 8
KEYS = {"ECDSA P-256": trustme.KeyType.ECDSA, "RSA 2048": trustme.KeyType.RSA}
PATH = "/api/v1/query?query=1"


def secured(directory: Path, authority: trustme.CA, key: trustme.KeyType, *, with_tls: bool) -> tuple[Cluster, str]:
    """(cluster, not yet started; the `Authorization` header that it asks for)."""
    directory.mkdir()
    token, lines = mint("bench")
    (directory / "tokens.toml").write_text(lines + 'metrics = "read"\n')
    settings = {"TRIPTYCH_TOKENS": str(directory / "tokens.toml")}
    if with_tls:
        certificate = authority.issue_cert("127.0.0.1", "localhost", key_type=key)
        certificate.private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
        (directory / "web.yml").write_text("tls_server_config: {cert_file: server.pem, key_file: server.pem}\n")
        settings["TRIPTYCH_WEB_CONFIG"] = str(directory / "web.yml")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    cluster = Cluster(directory, shards=1, workers=1, settings=settings, tls=context if with_tls else None)
    return cluster, f"Bearer {token}"


def used_s(cluster: Cluster) -> float:
    """CPU time of the coordinator."""
    assert cluster.coordinator is not None
    return sum(psutil.Process(cluster.coordinator.pid).cpu_times()[:2])


def connect(cluster: Cluster, session: ssl.SSLSession | None = None) -> socket.socket:
    plain = socket.create_connection(("127.0.0.1", cluster.port), timeout=30)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if cluster.tls is None:
        return plain
    return cluster.tls.wrap_socket(plain, server_hostname="localhost", session=session)


def request_us(cluster: Cluster, seconds: float) -> float:
    """CPU time of a request over kept connections, in µs."""
    request = message("GET", PATH, headers={"Authorization": cluster.authorization} if cluster.authorization else None)
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(cluster)) for _ in range(CONNECTIONS)]
        before, count, end = used_s(cluster), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            for connection in connections:
                connection.sendall(request)
            for connection in connections:
                assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")
            count += CONNECTIONS
        return (used_s(cluster) - before) / count * 1e6


def handshake_us(cluster: Cluster, seconds: float, version: ssl.TLSVersion, *, is_resumed: bool) -> float:
    """CPU time of a connection with a request of health, in µs; without TLS there is no handshake."""
    session = None
    if cluster.tls is not None:
        cluster.tls.minimum_version, cluster.tls.maximum_version = ssl.TLSVersion.TLSv1_2, version
    before, count, end = used_s(cluster), 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with connect(cluster, session) as connection:
            connection.sendall(message("GET", "/-/healthy"))
            assert connection.recv(65536)
            if isinstance(connection, ssl.SSLSocket) and is_resumed:
                assert session is None or connection.session_reused
                session = connection.session
        count += 1
    return (used_s(cluster) - before) / count * 1e6


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    options.add_argument("--rounds", type=int, default=5, help="of all kinds; the median is shown")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory, authority = Path(name), trustme.CA()
        (directory / "open").mkdir()
        clusters = {"open": Cluster(directory / "open", shards=1, workers=1)}
        for kind, key, with_tls in (
            ("token", trustme.KeyType.ECDSA, False),
            *((f"token, TLS, {name}", key, True) for name, key in KEYS.items()),
        ):
            made, authorization = secured(directory / f"c{len(clusters)}", authority, key, with_tls=with_tls)
            made.authorization = authorization
            clusters[kind] = made
        for cluster in clusters.values():
            stack.callback(cluster.stop)
            cluster.start()
        costs: dict[str, list[float]] = {}
        for _ in range(given.rounds):
            for kind, cluster in clusters.items():
                costs.setdefault(f"request: {kind}", []).append(request_us(cluster, given.seconds))
            for kind, cluster in clusters.items():
                for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
                    for is_resumed in (False, True) if cluster.tls is not None else (False,):
                        text = f"connection: {kind}" + (
                            f", {version.name}{', resumed' * is_resumed}" if cluster.tls is not None else ""
                        )
                        cost = handshake_us(cluster, given.seconds / 2, version, is_resumed=is_resumed)
                        costs.setdefault(text, []).append(cost)
        sys.stdout.write("CPU time of the coordinator in µs, median and range\n")
        for text, seen in costs.items():
            sys.stdout.write(f"{text:<56}{statistics.median(seen):>8.0f}   {min(seen):.0f} to {max(seen):.0f}\n")


if __name__ == "__main__":
    main()
