"""A cluster with TLS, a user and tokens, and what its clients need."""

from __future__ import annotations

import json
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import bcrypt
import trustme

from coordinator.access.tokens import PREFIX
from loadtest.harness.cluster import Cluster
from tests.forked_cluster import ForkedCluster

COST = 6
"""Of all hashes: 3 ms for a comparison."""
PASSWORD = "Passw0rd-alice"
ALICE = "Basic " + b64encode(f"alice:{PASSWORD}".encode()).decode()
HEAD_TIMEOUT_S = 2.0
TOKENS = {
    "reader": 'metrics = "read"\nlog = "read"\nvectors = "read"',
    "writer": 'metrics = "write"\nlog = "write"',
    "slow": 'metrics = "read"\nrequests_per_second = 2',
    "small": 'log = "read"\nshare = 1',
}
JSON = {"Content-Type": "application/json"}
QUERY = "/api/v1/query?query=1"
RECORDS = json.dumps({"records": [{"key": b64encode(b"k").decode(), "value": "dg=="}]}).encode()


def hashed(secret: str, cost: int = COST) -> str:
    return bcrypt.hashpw(secret.encode(), bcrypt.gensalt(cost)).decode()


def bearer(name: str) -> str:
    return f"Bearer {PREFIX}.{name}.Secret-{name}"


def token_lines(name: str, fields: str) -> str:
    return f'[{name}]\nhash = "{hashed(f"Secret-{name}")}"\n{fields}\n'


@dataclass
class Files:
    """The files of a secured cluster, in one directory."""

    directory: Path

    def __post_init__(self) -> None:
        self.ca = trustme.CA()
        self.ca.cert_pem.write_to_path(str(self.ca_file))
        self.new_certificate()

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.pem"

    def new_certificate(self, not_after: datetime | None = None) -> trustme.LeafCert:
        made = self.ca.issue_cert("127.0.0.1", "localhost", not_after=not_after)
        (self.directory / "server.pem").write_bytes(b"".join(pem.bytes() for pem in made.cert_chain_pems))
        made.private_key_pem.write_to_path(str(self.directory / "server.key"))
        return made

    def write_web(self, tls: str = "", rest: str = "") -> None:
        lines = f"tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n{tls}{rest}"
        (self.directory / "web.yml").write_text(lines)

    def write_tokens(self, tokens: dict[str, str]) -> None:
        """Name → roles and limits."""
        lines = "".join(token_lines(name, fields) for name, fields in tokens.items())
        new = self.directory / "tokens.new"
        new.write_text(lines)
        new.replace(self.directory / "tokens.toml")

    def client(self, certificate: trustme.LeafCert | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if certificate is not None:
            certificate.configure_cert(context)
        return context

    def cluster(self, *, with_tokens: bool = True, **settings: str) -> Cluster:
        names = {"TRIPTYCH_WEB_CONFIG": str(self.directory / "web.yml")}
        if with_tokens:
            names["TRIPTYCH_TOKENS"] = str(self.directory / "tokens.toml")
        return ForkedCluster(
            self.directory,
            shards=1,
            workers=1,
            tls=self.client(),
            settings={"TRIPTYCH_HEAD_TIMEOUT": f"{HEAD_TIMEOUT_S:g}s", **names, **settings},
        )


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
