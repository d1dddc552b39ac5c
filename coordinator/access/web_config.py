"""Prometheus's web configuration file: TLS, response headers, and users with bcrypt hashes of their passwords.

The format is that of prometheus/exporter-toolkit (web configuration). What Prometheus refuses is refused here too:
unknown fields, a key that is given twice, a hash that is not bcrypt's.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import yaml

from coordinator.access.passwords import check_hash
from shared.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
BRACKETS_MAX = 500
"""The parser's time is quadratic in the depth of nested brackets: 0.1 s for this many."""
TLS_VERSIONS = ("TLS10", "TLS11", "TLS12", "TLS13")
CLIENT_AUTH_TYPES = (
    "NoClientCert",
    "RequestClientCert",
    "RequireAnyClientCert",
    "VerifyClientCertIfGiven",
    "RequireAndVerifyClientCert",
)
CIPHER_SUITES = {
    "TLS_AES_128_GCM_SHA256": "",
    "TLS_AES_256_GCM_SHA384": "",
    "TLS_CHACHA20_POLY1305_SHA256": "",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""Name in Go's crypto/tls (`tls.CipherSuites`) → OpenSSL's name. Those of TLS 1.3 are always on in both."""
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": ""}
"""Go's name → OpenSSL's. Python can choose one NIST curve, but not X25519."""
_DURATION = re.compile(r"0|(?:\d+(?:\.\d*)?(?:ns|us|µs|ms|s|m|h))+")
"""A duration as Go writes it."""
HEADERS: dict[str, tuple[str, ...]] = {
    "Content-Security-Policy": (),
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("", "nosniff"),
    "X-Frame-Options": ("", "deny", "sameorigin"),
    "X-XSS-Protection": (),
}
"""Headers that may be set → their values; () for any value."""


class TlsServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    cert: str | None = None
    key: str | None = None
    client_ca: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    client_ca_file: str | None = None
    client_auth_type: str | None = None
    client_allowed_sans: tuple[str, ...] | None = None
    min_version: str | None = None
    max_version: str | None = None
    cipher_suites: tuple[str, ...] | None = None
    prefer_server_cipher_suites: bool | None = None
    curve_preferences: tuple[str, ...] | None = None

    @property
    def is_enabled(self) -> bool:
        return bool(
            self.cert or self.cert_file or self.key or self.key_file
            or self.client_ca or self.client_ca_file or self.client_auth_type
        )  # fmt: skip


class HttpServerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http2: bool | None = None
    headers: dict[str, str | None] | None = None


class RateLimit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    interval: str | None = None
    burst: str | None = None


class WebConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tls_server_config: TlsServerConfig | None = None
    http_server_config: HttpServerConfig | None = None
    basic_auth_users: dict[str, str | None] | None = None
    rate_limit: RateLimit | None = None

    @property
    def tls(self) -> TlsServerConfig | None:
        """The part about TLS; None without TLS."""
        tls = self.tls_server_config
        return tls if tls is not None and tls.is_enabled else None

    def headers(self) -> dict[str, str]:
        """Headers of every response."""
        http = self.http_server_config
        return {name: text for name, text in ((http and http.headers) or {}).items() if text}

    def users(self) -> dict[str, str]:
        """User name → bcrypt hash."""
        return {name: text or "" for name, text in (self.basic_auth_users or {}).items()}


class _Loader(yaml.SafeLoader):
    """Keeps numbers and dates as text, which is what the text fields expect, and refuses a key that is given twice."""


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    return str(loader.construct_scalar(node))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, content in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
        if key.value in fields:
            raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
        fields[key.value] = loader.construct_object(content, deep=True)
    return fields


for _tag in ("int", "float", "timestamp", "binary"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _text)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse(content: bytes, path: Path) -> WebConfig:
    """Decode the file's content; paths in it are relative to the directory of `path`. Raises ConfigError. Its text
    shows only names of fields from the content, which may contain a key."""
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{path} has {len(content)} bytes; it must have at most {FILE_BYTES_MAX}")
    brackets = content.count(b"[") + content.count(b"{")
    if brackets > BRACKETS_MAX:
        raise ConfigError(f"{path} has {brackets} brackets; it must have at most {BRACKETS_MAX}")
    try:
        fields = yaml.load(content, _Loader)
        config = msgspec.convert({} if fields is None else fields, WebConfig)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{path} is not valid: {where}{getattr(error, 'problem', None) or 'not YAML'}") from error
    except KeyError as error:  # from the parser, for a value that is tagged !!bool but is none
        raise ConfigError(f"{path} is not valid: a value is not what its tag says") from error
    except (msgspec.ValidationError, UnicodeDecodeError, ValueError) as error:
        raise ConfigError(f"{path} is not valid: {error}") from error
    except RecursionError as error:
        raise ConfigError(f"{path} is not valid: it is nested too deeply") from error
    try:
        _check(config)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if config.tls_server_config is None:
        return config
    return msgspec.structs.replace(config, tls_server_config=_with_paths_below(config.tls_server_config, path.parent))


def _check(config: WebConfig) -> None:
    for name, hashed in config.users().items():
        check_hash(hashed, f"basic_auth_users: the hash of {name!r}")
    http = config.http_server_config
    for name, text in ((http and http.headers) or {}).items():
        _one_of(name, HEADERS, "http_server_config: headers")
        if HEADERS[name]:
            _one_of(text or "", HEADERS[name], f"http_server_config: headers: {name}")
        if text and not text.isprintable():
            raise ConfigError(f"http_server_config: headers: {name} has a character that no header may have")
    rate = config.rate_limit
    if rate is not None and not _DURATION.fullmatch(rate.interval or "0"):
        raise ConfigError(f"rate_limit: interval is {rate.interval!r}; it must be a duration such as 1s")
    if rate is not None and not (rate.burst or "0").isdecimal():
        raise ConfigError(f"rate_limit: burst is {rate.burst!r}; it must be a number of requests")
    if config.tls_server_config is not None:
        _check_tls(config.tls_server_config)


def _check_tls(tls: TlsServerConfig) -> None:
    for name in (tls.min_version, tls.max_version):
        if name is not None:
            _one_of(name, TLS_VERSIONS, "tls_server_config: a TLS version")
    if (tls.min_version or "TLS12") > (tls.max_version or "TLS13"):
        raise ConfigError("tls_server_config: min_version is above max_version; no client could connect")
    for name in tls.cipher_suites or ():
        _one_of(name, CIPHER_SUITES, "tls_server_config: cipher_suites")
    for name in tls.curve_preferences or ():
        _one_of(name, CURVES, "tls_server_config: curve_preferences")
    if not tls.is_enabled:
        return
    for name in ("cert", "key"):
        if not getattr(tls, name) and not getattr(tls, f"{name}_file"):
            raise ConfigError(f"tls_server_config: {name}_file is missing")
    kind = tls.client_auth_type or "NoClientCert"
    if kind in ("RequireAnyClientCert", "RequireClientCert"):
        raise ConfigError(
            f"tls_server_config: client_auth_type is {kind}, which asks for a certificate and trusts any; it is not "
            "served. Use RequireAndVerifyClientCert with client_ca_file"
        )
    _one_of(kind, CLIENT_AUTH_TYPES, "tls_server_config: client_auth_type")
    if kind == "NoClientCert" and (tls.client_ca or tls.client_ca_file):
        raise ConfigError(
            "tls_server_config: client_ca_file is set but not client_auth_type; use RequireAndVerifyClientCert"
        )
    if tls.client_allowed_sans is not None and kind != "RequireAndVerifyClientCert":
        raise ConfigError("tls_server_config: client_allowed_sans needs client_auth_type: RequireAndVerifyClientCert")


def _one_of(text: str, known: Collection[str], field: str) -> None:
    if text not in known:
        raise ConfigError(f"{field} is {text!r}; it must be one of {', '.join(name for name in known if name)}")


def _with_paths_below(tls: TlsServerConfig, directory: Path) -> TlsServerConfig:
    paths = {name: getattr(tls, name) for name in ("cert_file", "key_file", "client_ca_file")}
    return msgspec.structs.replace(tls, **{name: str(directory / path) for name, path in paths.items() if path})
