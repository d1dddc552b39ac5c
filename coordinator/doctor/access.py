"""Checks of access: where the service listens, and the files for TLS, users and tokens."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from coordinator.access.policy import Policy, is_loopback, read, require_safe
from coordinator.access.tls import new_context
from coordinator.doctor.finding import REFUSED, Finding, ok, problem, warning
from shared.errors import ConfigError
from shared.settings import Settings

SETTINGS = "settings"
DAY_S = 86400.0
ENDS_SOON_DAYS, ENDS_TOO_SOON_DAYS = 30, 7
READABLE, WRITABLE = 0o004, 0o002
"""Mode bits: every user may read, or write, the file."""


def look(settings: Settings) -> Iterator[Finding]:
    try:
        policy = read(settings)
        if policy.tls is not None:
            new_context(policy.tls)
    except ConfigError as error:
        yield problem(SETTINGS, "access files", str(error), REFUSED)
        return
    yield listening(settings, policy)
    yield from modes(settings, policy)
    if policy.tls is not None:
        yield certificate(policy.tls.expires_at(), time.time())


def listening(settings: Settings, policy: Policy) -> Finding:
    name = "TRIPTYCH_LISTEN"
    host, _ = settings.address()
    if is_loopback(host):
        return ok(SETTINGS, name, settings.listen)
    try:
        require_safe(dataclasses.replace(settings, insecure=False), policy)
    except ConfigError as error:
        if settings.insecure:
            right = "configure TLS and authentication, unless a proxy or the network keeps others out"
            return warning(SETTINGS, name, f"{settings.listen}, with TRIPTYCH_INSECURE=true", right)
        return problem(SETTINGS, name, str(error), REFUSED)
    return ok(SETTINGS, name, f"{settings.listen}, with TLS and authentication")


def modes(settings: Settings, policy: Policy) -> Iterator[Finding]:
    """Checks the modes of files that have hashes or keys, or name such files: a user who can write them has access."""
    tls = policy.tls.config if policy.tls is not None else None
    has_secrets = bool(policy.web.users() or (tls is not None and tls.key))
    for name, path, is_secret in (
        ("TRIPTYCH_WEB_CONFIG", settings.web_config, has_secrets),
        ("TRIPTYCH_TOKENS", settings.tokens, True),
        ("key_file", tls.key_file if tls is not None else None, True),
    ):
        if not path:
            continue
        mode = Path(path).stat().st_mode
        right = f"set mode 0600 or 0640: chmod o= {path}"
        if mode & WRITABLE:
            yield problem(SETTINGS, name, f"{path} has mode {mode & 0o777:04o}: every user can change it", right)
        elif mode & READABLE and is_secret:
            yield warning(SETTINGS, name, f"{path} has mode {mode & 0o777:04o}: every user can read it", right)
        else:
            yield ok(SETTINGS, name, f"{path} has mode {mode & 0o777:04o}")


def certificate(ends_at_s: float | None, now_s: float) -> Finding:
    """`ends_at_s`: None if unknown."""
    name = "certificate"
    if ends_at_s is None:
        return warning(SETTINGS, name, "its expiry date cannot be read", "use a certificate in PEM format")
    days = (ends_at_s - now_s) / DAY_S
    date = time.strftime("%Y-%m-%d", time.gmtime(ends_at_s))
    if days >= ENDS_SOON_DAYS:
        return ok(SETTINGS, name, f"valid until {date}")
    seen = f"expired on {date}" if days < 0 else f"expires on {date}, in {days:.0f} days"
    right = "put a new certificate into cert_file and key_file; the service uses it without a restart"
    return (problem if days < ENDS_TOO_SOON_DAYS else warning)(SETTINGS, name, seen, right)
