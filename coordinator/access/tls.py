"""TLS contexts, and their replacement while connections are open.

A context holds the key of its session tickets, with which clients resume a session without a new signature. So a new
certificate does not replace the listener's context: that context stays, and hands each handshake over to a second one
that has the certificate. A change of policy, such as other certificate authorities for clients, does make a new
context, and all clients then begin with full handshakes.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from coordinator.access.certificates import expires_at
from coordinator.access.web_config import CIPHER_SUITES, CURVES, TlsServerConfig
from shared.errors import ConfigError

_VERSIONS = {
    "TLS10": ssl.TLSVersion.TLSv1,
    "TLS11": ssl.TLSVersion.TLSv1_1,
    "TLS12": ssl.TLSVersion.TLSv1_2,
    "TLS13": ssl.TLSVersion.TLSv1_3,
}
_VERIFY = {
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
"""The other types refuse no client because of its certificate, so no certificate is requested for them."""


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """The configuration, and the contents of its files as PEM. The contents are read once, since a file may change
    between two reads."""

    config: TlsServerConfig
    certificate: bytes
    key: bytes
    client_ca: bytes

    @property
    def requires_certificate(self) -> bool:
        """Whether every client must present a certificate, which is verified."""
        return self.config.client_auth_type == "RequireAndVerifyClientCert"

    @property
    def has_own_authorities(self) -> bool:
        """Whether the file names the authorities for client certificates; otherwise those of the system are used."""
        return bool(self.client_ca or self.config.client_ca or self.config.client_ca_file)

    def expires_at(self) -> float | None:
        """When its certificates expire, in Unix time; None if that cannot be read."""
        return expires_at(self.certificate)

    def _policy(self) -> tuple[TlsServerConfig, bytes]:
        return self.config, self.client_ca

    def has_policy_of(self, other: TlsMaterial) -> bool:
        """Whether the two differ in the certificate only."""
        return self._policy() == other._policy()


class Tls:
    """The context of a listener. For the event loop's thread only."""

    def __init__(self, material: TlsMaterial) -> None:
        self._take(material, new_context(material))

    def _take(self, material: TlsMaterial, context: ssl.SSLContext) -> None:
        self._material = material
        self._serving = self.context = context
        context.sni_callback = self._hand_over

    def renew(self, material: TlsMaterial) -> None:
        """Use this from the next handshake on. Raises ConfigError, and then nothing has changed."""
        if material == self._material:
            return
        context = new_context(material)
        if material.has_policy_of(self._material):
            self._material, self._serving = material, context
        else:
            self._take(material, context)

    def _hand_over(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if self._serving is not context:
            handshake.context = self._serving

    def refusal(self, certificate: Mapping[str, Any] | None) -> str:
        """Why a client with this certificate (`getpeercert`) is refused; empty if it is not."""
        allowed = self._material.config.client_allowed_sans
        if allowed is None or not _names(certificate or {}).isdisjoint(allowed):
            return ""
        return "no name of its certificate is in client_allowed_sans"


def _names(certificate: Mapping[str, Any]) -> set[str]:
    """The subject alternative names, with addresses in canonical form."""
    names = set()
    for kind, text in certificate.get("subjectAltName", ()):
        if kind == "IP Address":
            try:
                names.add(str(ipaddress.ip_address(text.strip())))
            except ValueError:
                continue
        elif kind in ("DNS", "email", "URI"):
            names.add(text)
    return names


def new_context(material: TlsMaterial) -> ssl.SSLContext:
    """A context for this material. Raises ConfigError, which names the unusable file."""
    config = material.config
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    oldest = config.min_version or "TLS12"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # old versions are on only if the file says so
        context.minimum_version = _VERSIONS[oldest]
        context.maximum_version = _VERSIONS[config.max_version or "TLS13"]
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    if config.prefer_server_cipher_suites is False:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    suites = [CIPHER_SUITES[name] for name in config.cipher_suites or () if CIPHER_SUITES[name]]
    is_old = oldest in ("TLS10", "TLS11")
    if suites or is_old:
        # OpenSSL's security levels from 1 on exclude TLS before 1.2.
        context.set_ciphers(":".join(suites or ["DEFAULT"]) + (":@SECLEVEL=0" if is_old else ""))
    if config.curve_preferences and CURVES[config.curve_preferences[0]]:
        context.set_ecdh_curve(CURVES[config.curve_preferences[0]])
    _load_certificate(context, material)
    context.verify_mode = _VERIFY.get(config.client_auth_type or "", ssl.CERT_NONE)
    if context.verify_mode != ssl.CERT_NONE:
        _load_authorities(context, material)
    return context


def _load_certificate(context: ssl.SSLContext, material: TlsMaterial) -> None:
    config = material.config
    try:
        with _as_file(material.certificate) as certificate, _as_file(material.key) as key:
            context.load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"cert_file ({config.cert_file or 'inline'}) and key_file ({config.key_file or 'inline'}) cannot be used "
            f"together: {reason}; they must be PEM, the key without a password and that of the certificate"
        ) from None


def _load_authorities(context: ssl.SSLContext, material: TlsMaterial) -> None:
    config = material.config
    if not material.has_own_authorities:
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)  # as Go does: the authorities of the system
        return
    try:
        context.load_verify_locations(cadata=_ascii(material.client_ca))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"client_ca_file ({config.client_ca_file or 'inline'}) cannot be used: "
            f"{getattr(error, 'reason', None) or error}; it must have certificates as PEM"
        ) from None


def _ascii(pem: bytes) -> str:
    """The text in ASCII, which ssl requires: comments between certificates, such as names of authorities, may have
    other characters."""
    return pem.decode("ascii", "replace").replace("\N{REPLACEMENT CHARACTER}", "?")


def _no_password() -> str:
    raise ValueError("the key has a password")


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """The content as an in-memory file that only this process sees, since ssl reads certificates from files only."""
    file = os.memfd_create("tls", os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        yield f"/proc/self/fd/{file}"
    finally:
        os.close(file)
