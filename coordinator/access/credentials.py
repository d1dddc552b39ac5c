"""Users and tokens: who a request comes from, by its `Authorization` header.

What was compared once is remembered under a keyed hash, so that a credential in use costs some microseconds. The key
never leaves the process: how long a look-up takes tells nothing about a credential. A reload makes new `Credentials`,
which remember nothing.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, TypeVar

from coordinator.access.passwords import TIMEOUT_S, Comparisons
from coordinator.access.roles import EVERYTHING, Roles
from coordinator.access.tokens import Token, split
from shared.errors import Overloaded, Unauthorized

Entry = TypeVar("Entry")

HEADER_CHARS_MAX = 1024
"""Longest `Authorization` header that is looked at."""
REMEMBERED_MAX = 4096
REMEMBERED_S = 3600.0
"""A credential that nobody has used for so long is compared again."""
WRONG_MAX = 1024
WRONG_S = 30.0
"""A wrong credential is refused without a comparison for so long: it may be an agent's, which tries it again and again.
"""


@dataclass(slots=True)
class Grant:
    """What a credential gives. `client`: the name under which its requests are counted, empty: their address."""

    name: str
    roles: Roles
    client: str = ""
    share: int | None = None
    rate: Rate | None = None


class Rate:
    """At most so many requests a second, after a burst of as many (a token bucket)."""

    __slots__ = ("_at", "_left", "_size", "per_second")

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._size = self._left = max(1.0, per_second)
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether a request may begin now."""
        now = time.monotonic()
        self._left = min(self._size, self._left + (now - self._at) * self.per_second)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


UNNAMED: Final = Grant("", EVERYTHING)
"""Of every request where no credential is needed."""


class Credentials:
    """The users and tokens of the files at one time. For the event loop's thread only."""

    def __init__(self, users: Mapping[str, str], tokens: Mapping[str, Token], comparisons: Comparisons) -> None:
        self._known: dict[tuple[str, str], tuple[str, Grant]] = {}
        """(scheme, name) → bcrypt hash, and what the credential gives."""
        for name, hashed in users.items():
            self._known["basic", name] = hashed, Grant(f"user {name}", EVERYTHING)
        for name, token in tokens.items():
            rate = Rate(token.requests_per_second) if token.requests_per_second is not None else None
            grant = Grant(f"token {name}", token.roles, f"token {name}", token.share, rate)
            self._known["bearer", name] = token.hash, grant
        self._hashes = [hashed for hashed, _ in self._known.values()]
        self._comparisons = comparisons
        self._key = secrets.token_bytes(32)
        self._remembered: dict[bytes, tuple[Grant, float]] = {}
        self._wrong: dict[bytes, float] = {}
        self._pending: dict[bytes, asyncio.Task[Grant | None]] = {}
        self.challenges = tuple(
            text
            for scheme, text in (
                ("basic", 'Basic realm="triptych", charset="UTF-8"'),
                ("bearer", 'Bearer realm="triptych"'),
            )
            if any(known == scheme for known, _ in self._known)
        )
        """Values of `WWW-Authenticate`."""

    def __bool__(self) -> bool:
        """Whether a credential is needed."""
        return bool(self._known)

    def remembered(self, header: str) -> Grant | None:
        """What this header gives, if that is known without a comparison."""
        digest = self._digest(header)
        entry = self._remembered.get(digest)
        if entry is None:
            return None
        grant, used_at = entry
        now = time.monotonic()
        if now - used_at > REMEMBERED_S:
            del self._remembered[digest]
            return None
        if now - used_at > 1.0:
            self._remembered[digest] = grant, now
        return grant

    async def compared(self, header: str | None, client: str) -> Grant:
        """What this header gives, after a comparison. `client`: whose comparisons are counted.

        Raises Unauthorized, and Overloaded when too many comparisons wait.
        """
        if header is None:
            raise Unauthorized(f"there is no Authorization header; {self._expected()}")
        if len(header) > HEADER_CHARS_MAX:
            raise Unauthorized(
                f"the Authorization header has {len(header)} characters; it must have at most {HEADER_CHARS_MAX}"
            )
        digest = self._digest(header)
        if time.monotonic() - self._wrong.get(digest, -WRONG_S) < WRONG_S:
            raise self._refused()
        pending = self._pending.get(digest)
        if pending is None:
            pending = asyncio.create_task(self._compare(header, digest, self._begin(header, client)))
            self._pending[digest] = pending
            pending.add_done_callback(lambda _: self._pending.pop(digest, None))
        try:
            grant = await asyncio.wait_for(asyncio.shield(pending), TIMEOUT_S)
        except TimeoutError:
            raise Overloaded("the credential could not be checked in time; try again later") from None
        if grant is None:
            raise self._refused()
        return grant

    def _begin(self, header: str, client: str) -> tuple[asyncio.Future[bool], Grant | None]:
        """The comparison, and what the credential gives if it is the right one. An unknown name is compared, too, with
        the hash of a known one that is always the same for this name: otherwise the time would tell who is known."""
        scheme, name, secret = self._parsed(header)
        known = self._known.get((scheme, name))
        if known is not None:
            return self._comparisons.begin(client, secret, known[0]), known[1]
        choice = int.from_bytes(self._digest(f"{scheme} {name}")[:4], "big") % len(self._hashes)
        return self._comparisons.begin(client, secret, self._hashes[choice]), None

    async def _compare(
        self, header: str, digest: bytes, begun: tuple[asyncio.Future[bool], Grant | None]
    ) -> Grant | None:
        comparison, grant = begun
        now = time.monotonic()
        if not await comparison or grant is None:
            _put(self._wrong, digest, now, WRONG_MAX)
            return None
        _put(self._remembered, digest, (grant, now), REMEMBERED_MAX)
        return grant

    def _digest(self, text: str) -> bytes:
        return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=16, key=self._key).digest()

    def _parsed(self, header: str) -> tuple[str, str, bytes]:
        """(scheme, name, secret) of the header. Raises Unauthorized when it cannot be read."""
        scheme, _, text = header.partition(" ")
        scheme, text = scheme.lower(), text.strip()
        if scheme == "bearer":
            parts = split(text)
            if parts is None:
                raise Unauthorized("the bearer token is none of this service; `triptych token NAME` makes one")
            return scheme, parts[0], parts[1].encode("utf-8", "surrogateescape")
        if scheme == "basic":
            try:
                user, colon, password = base64.b64decode(text, validate=True).partition(b":")
            except (binascii.Error, ValueError):
                user = colon = password = b""
            if not colon:
                raise Unauthorized("the Authorization header is not Basic and base64 of user:password")
            return scheme, user.decode("utf-8", "surrogateescape"), password
        raise Unauthorized(f"the Authorization header has an unknown scheme; {self._expected()}")

    def _expected(self) -> str:
        return "send one with " + " or ".join(text.partition(" ")[0] for text in self.challenges)

    def _refused(self) -> Unauthorized:
        return Unauthorized("the user and password, or the token, are not known here")


def _put(entries: dict[bytes, Entry], digest: bytes, entry: Entry, most: int) -> None:
    """Put it at the end; the oldest makes room."""
    entries.pop(digest, None)
    if len(entries) >= most:
        del entries[next(iter(entries))]
    entries[digest] = entry
