"""What `triptych doctor` says of where the service listens and of the files of TLS, users and tokens."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import bcrypt
import pytest
import trustme

from coordinator.access.certificates import expires_at
from coordinator.access.policy import Policy
from coordinator.doctor import access
from shared.settings import Settings
from tests.unit.doctor_findings import level

TOKEN_HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "localhost:1", "[::1]:1", "127.1.2.3:1"])
def test_loopback_is_well(listen: str) -> None:
    assert level(access.listening(Settings(listen=listen), Policy())) == "ok"


@pytest.mark.parametrize("listen", [":9090", "0.0.0.0:9090", "192.0.2.1:9090", "[::]:9090", "metrics.lan:9090"])
def test_listening_beyond_this_machine(listen: str) -> None:
    assert level(access.listening(Settings(listen=listen), Policy())) == "problem"
    assert level(access.listening(Settings(listen=listen, insecure=True), Policy())) == "warning"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secured(tmp_path: Path, authority: trustme.CA) -> Settings:
    """Beyond this machine, with TLS and a token."""
    leaf = authority.issue_cert("localhost")
    content = b"".join(pem.bytes() for pem in leaf.cert_chain_pems)
    for name, text in (
        ("server.pem", content),
        ("server.key", leaf.private_key_pem.bytes()),
        ("web.yml", b"tls_server_config: {cert_file: server.pem, key_file: server.key}"),
        ("tokens.toml", f'[a]\nhash = "{TOKEN_HASH}"\nlog = "read"'.encode()),
    ):
        (tmp_path / name).write_bytes(text)
        (tmp_path / name).chmod(0o640)
    return Settings(listen=":9090", web_config=str(tmp_path / "web.yml"), tokens=str(tmp_path / "tokens.toml"))


def access_troubles(settings: Settings) -> dict[str, str]:
    found = list(access.look(settings))
    return {finding.name: level(finding) for finding in found if level(finding) != "ok"}


def test_tls_and_a_token_make_listening_well(secured: Settings) -> None:
    assert access_troubles(secured) == {}
    assert access_troubles(replace(secured, tokens="")) == {"TRIPTYCH_LISTEN": "problem"}


def test_files_of_access_that_a_start_refuses(secured: Settings, tmp_path: Path) -> None:
    (tmp_path / "server.key").write_bytes(trustme.CA().issue_cert("localhost").private_key_pem.bytes())
    assert access_troubles(secured) == {"access files": "problem"}
    (tmp_path / "tokens.toml").write_text("[a")
    assert access_troubles(secured) == {"access files": "problem"}
    (tmp_path / "web.yml").unlink()
    assert access_troubles(secured) == {"access files": "problem"}


@pytest.mark.parametrize(
    ("name", "finding"),
    [("web.yml", "TRIPTYCH_WEB_CONFIG"), ("tokens.toml", "TRIPTYCH_TOKENS"), ("server.key", "key_file")],
)
def test_files_of_access_that_every_user_can_read(secured: Settings, tmp_path: Path, name: str, finding: str) -> None:
    if name == "web.yml":
        (tmp_path / name).chmod(0o644)
        assert access_troubles(secured) == {}  # it has no secret
        content = (tmp_path / name).read_text()
        (tmp_path / name).write_text(f"{content}\nbasic_auth_users:\n  a: {TOKEN_HASH}\n")
    (tmp_path / name).chmod(0o644)
    assert access_troubles(secured) == {finding: "warning"}
    (tmp_path / name).chmod(0o602)
    assert access_troubles(secured) == {finding: "problem"}


@pytest.mark.parametrize(
    ("days", "expected"), [(31, "ok"), (29, "warning"), (8, "warning"), (6, "problem"), (-1, "problem")]
)
def test_a_certificate_that_ends(days: int, expected: str) -> None:
    assert level(access.certificate(1e9 + days * 86400.0, 1e9)) == expected


def test_the_first_end_of_a_chain_counts(authority: trustme.CA) -> None:
    ends = [datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2050, 1, 1, tzinfo=UTC)]
    late, later = (authority.issue_cert("a", not_after=end).cert_chain_pems[0].bytes() for end in ends)
    assert [expires_at(pem) for pem in (late, later, later + late)] == [ends[at].timestamp() for at in (0, 1, 0)]
    for cut in range(0, len(late), 7):
        assert expires_at(late[:cut] + b"\n-----END CERTIFICATE-----") in (None, ends[0].timestamp())
    assert level(access.certificate(expires_at(b"none"), 0.0)) == "warning"
