"""HTTP client settings for requests to other services, in the form of Prometheus's configuration: credentials and TLS.

Unsupported settings (proxies, OAuth 2) are refused by name, since a request without them would not work as intended.
"""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from coordinator.prometheus_config.yaml_fields import Section
from shared.errors import ConfigError

SECRET_BYTES_MAX = 64 << 10
NOT_SERVED = (
    "oauth2",
    "sigv4",
    "azuread",
    "google_iam",
    "proxy_url",
    "proxy_from_environment",
    "proxy_connect_header",
    "no_proxy",
)
TLS_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}


@cache
def _system_tls() -> ssl.SSLContext:
    """A context with the CA certificates that the system trusts. Reading them takes about 25 ms."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@dataclass(frozen=True, slots=True)
class HttpClientConfig:
    """`scheme` and `secret`: the parts of the Authorization header; the secret may be in `secret_file` instead. `tls`:
    the context, created when the configuration is read."""

    user: str | None = None
    scheme: str = ""
    secret: str = ""
    secret_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    follow_redirects: bool = True
    tls: ssl.SSLContext = field(default_factory=_system_tls)
    server_name: str | None = None

    def request_headers(self) -> dict[str, str]:
        """The headers of a request. Reads `secret_file` each time, since secrets change, so this must run in a thread.
        Raises ConfigError."""
        if not self.scheme:
            return dict(self.headers)
        secret = self.secret
        if self.secret_file is not None:
            secret = _secret(self.secret_file)
        if self.user is not None:
            secret = base64.b64encode(f"{self.user}:{secret}".encode()).decode()
        return {**self.headers, "Authorization": f"{self.scheme} {secret}"}


def read(section: Section) -> HttpClientConfig:
    """Take the fields about HTTP from a section. Raises ConfigError."""
    for name in NOT_SERVED:
        if section.take(name) not in (None, "false", ""):
            raise section.error("is not served", name)
    section.boolean("enable_http2", True)  # HTTP/1.1 is used in any case
    user, scheme, secret, secret_file = _authorization(section)
    tls, server_name = _tls(section.section("tls_config"))
    client = HttpClientConfig(
        user,
        scheme,
        secret,
        secret_file,
        _headers(section),
        section.boolean("follow_redirects", True),
        tls,
        server_name,
    )
    if secret_file is not None:
        try:
            client.request_headers()
        except ConfigError as error:
            raise section.error(str(error)) from None
    return client


def _authorization(section: Section) -> tuple[str | None, str, str, Path | None]:
    """(user, scheme, secret, file of the secret). At most one way of authorization may be configured."""
    ways: list[tuple[str | None, str, str, Path | None]] = []
    basic = section.section("basic_auth")
    if basic is not None:
        user_file = _beside(section, basic.text("username_file"))
        user = basic.text("username") if user_file is None else _secret(user_file)
        secret, secret_file = _secret_of(basic, "password")
        basic.finish()
        ways.append((user, "Basic", secret, secret_file))
    authorization = section.section("authorization")
    if authorization is not None:
        scheme = authorization.text("type", "Bearer").strip() or "Bearer"
        if scheme.lower() == "basic":
            raise authorization.error("is 'Basic'; use basic_auth", "type")
        secret, secret_file = _secret_of(authorization, "credentials")
        authorization.finish()
        ways.append((None, scheme, secret, secret_file))
    token, token_file = _secret_of(section, "bearer_token")
    if token or token_file:
        ways.append((None, "Bearer", token, token_file))
    if len(ways) > 1:
        raise section.error("at most one of basic_auth, authorization and bearer_token may be given")
    user_, scheme, secret, secret_file = ways[0] if ways else (None, "", "", None)
    for text in (scheme, secret):
        if not text.isprintable() or not text.isascii():
            raise section.error("a credential has a character that no header may have")
    return user_, scheme, secret, secret_file


def _secret_of(section: Section, name: str) -> tuple[str, Path | None]:
    secret, file = section.text(name), _beside(section, section.text(f"{name}_file"))
    if secret and file is not None:
        raise section.error(f"at most one of {name} and {name}_file may be given")
    return secret, file


def _headers(section: Section) -> dict[str, str]:
    """The section `http_headers`: for each name, lists of values, secrets and files. The files are read once."""
    headers: dict[str, str] = {}
    headers_section = section.section("http_headers")
    for name in headers_section.fields if headers_section is not None else ():
        assert headers_section is not None
        header = headers_section.section(name)
        if header is None:
            continue
        files = [_secret(path) for path in (_beside(section, text) for text in header.texts("files")) if path]
        text = ", ".join([*header.texts("values"), *header.texts("secrets"), *files])
        header.finish()
        if not name.isascii() or not name.replace("-", "").isalnum() or not (text.isprintable() and text.isascii()):
            raise headers_section.error("is no header, or its value has a character that no header may have", name)
        headers[name] = text
    return headers


def _tls(section: Section | None) -> tuple[ssl.SSLContext, str | None]:
    """(context for connections, name that the certificate must have) from a section `tls_config`."""
    if section is None:
        return _system_tls(), None
    ca, cert, key = ((section.text(name), section.text(f"{name}_file")) for name in ("ca", "cert", "key"))
    versions = [section.text(name) for name in ("min_version", "max_version")]
    server_name, is_insecure = section.text("server_name"), section.boolean("insecure_skip_verify")
    section.finish()
    for version in versions:
        if version and version not in TLS_VERSIONS:
            raise section.error(f"a TLS version is {version!r}; it must be one of {', '.join(TLS_VERSIONS)}")
    if cert[0] or key[0]:
        raise section.error("cert and key must be in files: cert_file, key_file")
    try:
        context = ssl.create_default_context(cafile=_beside(section, ca[1]), cadata=ca[0] or None)
        if cert[1] or key[1]:
            context.load_cert_chain(_beside(section, cert[1]) or "", _beside(section, key[1]), _no_passphrase)
    except (OSError, ValueError) as error:
        raise section.error(f"the certificates cannot be used: {error}") from None
    if is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if versions[0]:
        context.minimum_version = TLS_VERSIONS[versions[0]]
    if versions[1]:
        context.maximum_version = TLS_VERSIONS[versions[1]]
    return context, server_name or None


def _no_passphrase() -> str:
    """Refuses keys with a passphrase, for which OpenSSL would ask on the terminal."""
    raise ValueError("the key has a passphrase")


def _beside(section: Section, name: str) -> Path | None:
    """A path from the configuration file, relative to the directory of that file."""
    return Path(section.path).parent / name if name else None


def _secret(path: Path) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(SECRET_BYTES_MAX + 1).strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(text) > SECRET_BYTES_MAX or not text.isprintable() or not text.isascii():
        raise ConfigError(f"{path} has more than {SECRET_BYTES_MAX} bytes, or a character that no header may have")
    return text
