"""Prometheus's web configuration file: what is read, and what is refused. promtool is the judge where it is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import trustme

from coordinator.access.web_config import parse
from shared.errors import ConfigError

HASH = "$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi"
TLS = "tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"
VALID = {
    "empty": "",
    "users": f"basic_auth_users:\n  alice: {HASH}\n  123: {HASH}\n",
    "no users": "basic_auth_users:\n",
    "tls": TLS,
    "all of tls": TLS
    + "  min_version: TLS12\n  max_version: TLS13\n  prefer_server_cipher_suites: false\n"
    + "  cipher_suites: [TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256]\n"
    + "  curve_preferences: [CurveP256]\n",
    "clients' certificates": TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: cert.pem\n",
    "certificates if given": TLS + "  client_auth_type: VerifyClientCertIfGiven\n",
    "certificates asked for": TLS + "  client_auth_type: RequestClientCert\n",
    "no certificates": TLS + "  client_auth_type: NoClientCert\n",
    "headers": "http_server_config:\n  http2: false\n  headers:\n    X-Frame-Options: deny\n    X-XSS-Protection: ''\n"
    "    X-Content-Type-Options: nosniff\n    Strict-Transport-Security: max-age=1\n"
    "    Content-Security-Policy: default-src 'self'\n",
    "versions without tls": "tls_server_config:\n  min_version: TLS13\n",
}
INVALID = {
    "an unknown field": ("basic_auth_user:\n  alice: x\n", "unknown field `basic_auth_user`"),
    "an unknown field of tls": (TLS + "  cert_fil: x\n", "unknown field `cert_fil`"),
    "a user twice": (f"basic_auth_users:\n  a: {HASH}\n  a: {HASH}\n", "line 3: 'a' is given twice"),
    "a password that is no hash": ("basic_auth_users:\n  a: secret\n", "the hash of 'a' is not a bcrypt hash"),
    "a user without a hash": ("basic_auth_users:\n  a:\n", "the hash of 'a' is not a bcrypt hash"),
    "no key": ("tls_server_config:\n  cert_file: cert.pem\n", "key_file is missing"),
    "no certificate": ("tls_server_config:\n  key_file: key.pem\n", "cert_file is missing"),
    "an authority without a type": (TLS + "  client_ca_file: cert.pem\n", "use RequireAndVerifyClientCert"),
    "an unknown type": (TLS + "  client_auth_type: Always\n", "it must be one of NoClientCert"),
    "an unknown version": (TLS + "  min_version: TLS14\n", "it must be one of TLS10"),
    "an unknown cipher": (TLS + "  cipher_suites: [RC4]\n", "it must be one of TLS_AES_128"),
    "an unknown curve": (TLS + "  curve_preferences: [P1]\n", "it must be one of CurveP256"),
    "an unknown header": ("http_server_config:\n  headers:\n    Server: x\n", "is 'Server'; it must be one of"),
    "a wrong header": ("http_server_config:\n  headers:\n    X-Frame-Options: maybe\n", "it must be one of deny"),
    "a list": ("- a\n", "Expected `object`"),
    "no yaml": ("a: [\n", "line 2: expected"),
    "text for a table": ("tls_server_config: x\n", "Expected `object"),
    "a number for a list": (TLS + "  cipher_suites: 5\n", "Expected `array"),
    "no boolean": ("http_server_config:\n  http2: maybe\n", "Expected `bool"),
    "an object of Python": ("!!python/object/apply:os.system [ls]\n", "line 1"),
    "no boolean by its tag": ("basic_auth_users: !!bool x\n", "not what its tag says"),
    "something in itself": ("basic_auth_users: &a\n  b: *a\n", "recursive"),
}
OURS = {
    "any certificate": (TLS + "  client_auth_type: RequireAnyClientCert\n", "it is not served"),
    "a hash that takes hours": (f"basic_auth_users:\n  a: {HASH.replace('$10$', '$31$')}\n", "it must be 4 to 15"),
    "versions that exclude all": (TLS + "  min_version: TLS13\n  max_version: TLS12\n", "min_version is above"),
    "two lines in a header": (
        'http_server_config:\n  headers:\n    X-XSS-Protection: "a\\nb: c"\n',
        "has a character that no header may have",
    ),
}
"""Refused by us only: what Prometheus would serve, or accept and then fail at."""
NEW = {
    "a rate": "rate_limit:\n  interval: 1s\n  burst: 20\n",
    "a rate of parts": "rate_limit:\n  interval: 1m0.5s\n",
    "no rate": "rate_limit:\n  interval: 0\n",
}
"""In the documentation of the format, and not known to older releases of promtool."""
NEW_AND_INVALID = {
    "no duration": ("rate_limit:\n  interval: often\n", "it must be a duration such as 1s"),
    "no number": ("rate_limit:\n  burst: many\n", "it must be a number"),
    "an unknown field of the rate": ("rate_limit:\n  size: 1\n", "unknown field `size`"),
}
PROMTOOL = shutil.which("promtool")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("web")
    certificate = trustme.CA().issue_cert("localhost")
    certificate.cert_chain_pems[0].write_to_path(made / "cert.pem")
    certificate.private_key_pem.write_to_path(made / "key.pem")
    return made


@pytest.mark.parametrize("name", {**VALID, **NEW})
def test_a_valid_file_is_read(name: str, directory: Path) -> None:
    parse({**VALID, **NEW}[name].encode(), directory / "web.yml")


@pytest.mark.parametrize("name", {**INVALID, **OURS, **NEW_AND_INVALID})
def test_an_invalid_file_is_refused_with_what_is_wrong(name: str, directory: Path) -> None:
    content, why = {**INVALID, **OURS, **NEW_AND_INVALID}[name]
    with pytest.raises(ConfigError) as refused:
        parse(content.encode(), directory / "web.yml")
    assert str(refused.value).startswith(str(directory / "web.yml"))
    assert why in str(refused.value)


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize("is_valid", [True, False])
def test_promtool_agrees(is_valid: bool, directory: Path) -> None:
    contents = list(VALID.values()) if is_valid else [content for content, _ in INVALID.values()]
    paths = []
    for number, content in enumerate(contents):
        paths.append(directory / f"web-{number}.yml")
        paths[-1].write_text(content)
    judged = subprocess.run([str(PROMTOOL), "check", "web-config", *paths], capture_output=True, text=True, timeout=60)
    lines = (judged.stdout + judged.stderr).splitlines()
    valid = {path.name for path in paths if f"{path} SUCCESS" in lines}
    assert len(lines) >= len(paths)
    assert valid == ({path.name for path in paths} if is_valid else set())


def test_a_text_about_a_wrong_file_has_none_of_its_content(directory: Path) -> None:
    for content in ("tls_server_config: {key: SECRET, x: 1}", "basic_auth_users: {a: SECRET}", "key: SECRET\n- %"):
        with pytest.raises(ConfigError) as refused:
            parse(content.encode(), directory / "web.yml")
        assert "SECRET" not in str(refused.value)


def test_paths_are_beside_the_file_and_users_keep_their_hashes(directory: Path) -> None:
    config = parse((TLS + VALID["users"]).encode(), directory / "web.yml")
    assert config.tls is not None
    assert config.tls.cert_file == str(directory / "cert.pem")
    assert config.users() == {"alice": HASH, "123": HASH}


def test_empty_headers_are_not_sent(directory: Path) -> None:
    headers = parse(VALID["headers"].encode(), directory / "web.yml").headers()
    assert headers["X-Frame-Options"] == "deny"
    assert "X-XSS-Protection" not in headers


def test_a_file_that_nests_deeply_or_is_large_is_refused(directory: Path) -> None:
    for content in (b"[" * 3_000, b"[" * 500, b"- " * 3_000, b"# " + b"x" * (1 << 20)):
        with pytest.raises(ConfigError):
            parse(content, directory / "web.yml")
