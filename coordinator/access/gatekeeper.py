"""Decides which requests are allowed, by files that are read again when they change."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping

from coordinator.access.credentials import UNNAMED, Credentials, Grant
from coordinator.access.passwords import Comparisons
from coordinator.access.policy import Policy, read, require_no_weaker, require_safe, stamps
from coordinator.access.roles import HEALTH, PAGE, Need
from coordinator.access.tls import Tls
from shared.errors import ConfigError, Forbidden, Overloaded, TriptychError, Unauthorized
from shared.settings import Settings
from shared.telemetry import event

LOOK_S = 0.5
"""How often the files are checked. A changed file is read once it has not changed between two checks, because it may
still be being written."""


class Gatekeeper:
    """For the event loop's thread only. Raises ConfigError if the service would not be safe with these files, or
    without files."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._comparisons = Comparisons()
        self._policy = Policy()
        self.tls: Tls | None = None
        self.is_current = True
        """Whether the policy in force is that of the files."""
        self.reloads: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Requests that were refused, by reason."""
        self._last_failure = ""
        self._task: asyncio.Task[None] | None = None
        policy = read(settings)
        require_safe(settings, policy)
        if policy.tls is not None:
            self.tls = Tls(policy.tls)
        self._use(policy)
        _log_what_is_not_served(policy)

    def _use(self, policy: Policy) -> None:
        if self.tls is not None and policy.tls is not None:
            self.tls.renew(policy.tls)
        self._policy = policy
        self.certificate_expires_at = policy.tls.expires_at() if policy.tls is not None else None
        """In Unix time; None without TLS, and if the date cannot be read."""
        self._credentials = Credentials(policy.web.users(), policy.tokens, self._comparisons)
        self.headers: Mapping[str, str] = policy.web.headers()
        """Headers of every response."""
        self.header_lines = "".join(f"{name}: {text}\r\n" for name, text in self.headers.items()).encode()
        """The same headers as lines of a response head."""
        self.is_open = not self._credentials
        """Whether every request is allowed."""

    @property
    def knows_its_clients(self) -> bool:
        """Whether every client must have a credential or a certificate."""
        return self._policy.knows_its_clients

    # For each request

    def known(self, header: str | None, need: Need) -> Grant | None:
        """The grant of a request's credential; None if it must be compared. Raises Forbidden and Overloaded."""
        if self.is_open:
            return UNNAMED
        grant = None if header is None else self._credentials.remembered(header)
        if grant is not None:
            self._require(grant, need)
        return grant

    async def compared(self, header: str | None, route: str | None, need: Need, client: str) -> Grant:
        """As `known`, after a comparison of the credential; also raises Unauthorized. `client`: where the request comes
        from."""
        if route in PAGE or (route in HEALTH and self._settings.health_open):
            return UNNAMED
        try:
            grant = await self._credentials.compared(header, client)
        except Unauthorized:
            self.refused["unauthorized"] += 1
            raise
        except Overloaded:
            self.refused["busy"] += 1
            raise
        self._require(grant, need)
        return grant

    def _require(self, grant: Grant, need: Need) -> None:
        if not need.is_met(grant.roles):
            self.refused["forbidden"] += 1
            raise Forbidden(f"the {grant.name} does not have {need}, which this request needs")
        if grant.rate is not None and not grant.rate.take():
            self.refused["rate"] += 1
            raise Overloaded(
                f"the {grant.name} sends more than {grant.rate.per_second:g} requests a second, which is its limit "
                "(requests_per_second in TRIPTYCH_TOKENS); try again later"
            ).because("token_rate")

    def challenges(self, error: TriptychError) -> tuple[str, ...]:
        """Values of `WWW-Authenticate` for a response with this error."""
        return self._credentials.challenges if isinstance(error, Unauthorized) else ()

    # Files that change

    def start(self) -> None:
        if self._policy.paths:
            self._task = asyncio.create_task(self._watch())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._comparisons.stop()

    async def _watch(self) -> None:
        """Reload the files when they change. Files on a network may respond late or never; that delays only this
        task."""
        used = previous = None  # the first check reads the files again: they may have changed since the start
        while True:
            await asyncio.sleep(LOOK_S)
            paths = self._policy.paths
            seen = await asyncio.to_thread(stamps, paths)
            is_settled, previous = seen == previous, seen
            if is_settled and (seen != used or not self.is_current):
                await self._reload()
                used = seen if paths == self._policy.paths else None

    async def _reload(self) -> None:
        try:
            policy = await asyncio.to_thread(read, self._settings)
            require_no_weaker(self._policy, policy)
            require_safe(self._settings, policy)
            if policy != self._policy:
                self._use(policy)
                self.reloads["success"] += 1
                event(logging.INFO, "access files read again", users=len(policy.web.users()), tokens=len(policy.tokens))
        except (ConfigError, OSError) as error:  # OSError: no file can be opened at present; the next check retries
            self.is_current = False
            if str(error) != self._last_failure:
                self._last_failure = str(error)
                self.reloads["failure"] += 1
                event(logging.ERROR, "access files cannot be used; what they said before stays in force", why=error)
            return
        self.is_current, self._last_failure = True, ""


def _log_what_is_not_served(policy: Policy) -> None:
    http, tls = policy.web.http_server_config, policy.tls
    if http is not None and http.http2:
        event(logging.INFO, "http_server_config: HTTP/2 is not served; clients use HTTP/1.1")
    rate = policy.web.rate_limit
    if rate is not None and (rate.interval or "0") != "0":
        event(logging.WARNING, "rate_limit is not applied; tokens have requests_per_second, and clients their shares")
    if tls is None:
        return
    curves = tls.config.curve_preferences
    if curves is not None and (len(curves) > 1 or curves == ("X25519",)):
        event(logging.INFO, "curve_preferences: only the first is used, and X25519 is on by default", curves=curves)
    if tls.config.client_auth_type == "RequestClientCert":
        event(logging.INFO, "client_auth_type: RequestClientCert asks for nothing here, since it trusts anything")
