"""The access policy as read from its files: the web configuration, the files that it names, and the tokens."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coordinator import regular_files
from coordinator.access import tokens, web_config
from coordinator.access.tls import TlsMaterial
from coordinator.access.tokens import Token
from coordinator.access.web_config import TlsServerConfig, WebConfig
from coordinator.regular_files import NotReadable
from shared.errors import ConfigError
from shared.settings import Settings

PEM_BYTES_MAX = 1 << 20
"""Longest file of certificates or of a key."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The policy at one time. `paths`: the files that it was read from."""

    web: WebConfig = field(default_factory=WebConfig)
    tls: TlsMaterial | None = None
    tokens: Mapping[str, Token] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()

    @property
    def asks_for_credentials(self) -> bool:
        return bool(self.tokens or self.web.users())

    @property
    def requires_certificate(self) -> bool:
        return self.tls is not None and self.tls.requires_certificate

    @property
    def knows_its_clients(self) -> bool:
        """Whether every client must have a credential or a certificate."""
        return self.asks_for_credentials or self.requires_certificate


def read(settings: Settings) -> Policy:
    """Read the policy that the settings name. Raises ConfigError, which names the file and its setting."""
    web, tls, known_tokens, paths = WebConfig(), None, {}, []
    if settings.web_config:
        path = Path(settings.web_config)
        web = web_config.parse(_content(path, "TRIPTYCH_WEB_CONFIG", web_config.FILE_BYTES_MAX), path)
        paths.append(path)
        if web.tls is not None:
            tls = _material(web.tls)
            files = (web.tls.cert_file, web.tls.key_file, web.tls.client_ca_file)
            paths += [Path(name) for name in files if name]
    if settings.tokens:
        path = Path(settings.tokens)
        known_tokens = tokens.parse(_content(path, "TRIPTYCH_TOKENS", tokens.FILE_BYTES_MAX), path)
        paths.append(path)
        if not known_tokens:
            raise ConfigError(f"TRIPTYCH_TOKENS names {path}, which has no token; `triptych token NAME` makes one")
    return Policy(web, tls, known_tokens, tuple(paths))


def _material(config: TlsServerConfig) -> TlsMaterial:
    def content(name: str) -> bytes:
        inline, path = getattr(config, name), getattr(config, f"{name}_file")
        return _content(Path(path), f"{name}_file", PEM_BYTES_MAX) if path else (inline or "").encode()

    return TlsMaterial(config, content("cert"), content("key"), content("client_ca"))


def _content(path: Path, setting: str, bytes_max: int) -> bytes:
    try:
        return regular_files.content(path, bytes_max)
    except NotReadable as why:
        raise ConfigError(f"{setting} names {path}, which {why}") from None


def stamps(paths: tuple[Path, ...]) -> tuple[tuple[int, ...], ...]:
    """A value for each file that changes when the file is written or replaced; () if the file is not accessible."""
    return tuple(_stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to that address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def require_safe(settings: Settings, policy: Policy) -> None:
    """Raise ConfigError if other hosts can reach the service and it lacks TLS or authentication."""
    host, _ = settings.address()
    if settings.insecure or is_loopback(host) or (policy.tls is not None and policy.knows_its_clients):
        return
    missing = [
        name
        for name, is_present in (("TLS", policy.tls is not None), ("authentication", policy.knows_its_clients))
        if not is_present
    ]
    raise ConfigError(
        f"TRIPTYCH_LISTEN is {settings.listen}, which other hosts reach, without {' and without '.join(missing)}; "
        "set both up with TRIPTYCH_WEB_CONFIG and TRIPTYCH_TOKENS (docs/security.md), or listen at 127.0.0.1, or set "
        "TRIPTYCH_INSECURE=true if a proxy or the network admits only clients that may do everything"
    )


def require_no_weaker(before: Policy, after: Policy) -> None:
    """Raise ConfigError for changes that need a restart: TLS switched on or off, credentials or client certificates no
    longer required, or client certificates no longer restricted. A file that is empty or incomplete for a moment,
    because it is being written, must neither open the service nor remove one of two protections."""
    if (before.tls is None) != (after.tls is None):
        raise ConfigError(f"TLS would be {'off' if after.tls is None else 'on'}; that needs a restart")
    if before.asks_for_credentials and not after.asks_for_credentials:
        raise ConfigError("nobody would have to show a credential any more; that needs a restart")
    if before.requires_certificate and not after.requires_certificate:
        raise ConfigError("no client would have to show a certificate any more; that needs a restart")
    if before.tls is None or after.tls is None or not after.requires_certificate:
        return
    if before.tls.has_own_authorities and not after.tls.has_own_authorities:
        raise ConfigError(
            "client_ca_file would be gone, and the system's authorities would vouch for clients; that needs a restart"
        )
    if before.tls.config.client_allowed_sans is not None and after.tls.config.client_allowed_sans is None:
        raise ConfigError(
            "client_allowed_sans would be gone, and any certificate of the authorities let in; that needs a restart"
        )
