"""Users and tokens: who sends a request, according to its `Authorization` header.

The result of a comparison is remembered under a keyed hash, so that a credential in use costs a few microseconds. The
key never leaves the process, so the duration of a look-up tells nothing about a credential. A reload makes new
`Credentials`, which remember nothing.
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
"""Longest `Authorization` header that is accepted."""
REMEMBERED_MAX = 4096
REMEMBERED_S = 3600.0
"""A credential that was not used for this long is compared again."""
WRONG_MAX = 1024
WRONG_S = 30.0
"""How long a wrong credential is refused without a comparison: an agent may retry it again and again."""


@dataclass(slots=True)
class Grant:
    """The rights of a credential. `client`: the name under which its requests are counted; empty: their address."""

    name: str
    roles: Roles
    client: str = ""
    share: int | None = None
    rate: Rate | None = None


class Rate:
    """A token bucket: at most `per_second` requests a second, after a burst of as many."""

    __slots__ = ("_left", "_size", "_updated_at", "per_second")

    def __init__(self, per_second: float) -> None:
        self.per_second = per_second
        self._size = self._left = max(1.0, per_second)
        self._updated_at = time.monotonic()

    def take(self) -> bool:
        """Whether a request may begin now."""
        now = time.monotonic()
        self._left = min(self._size, self._left + (now - self._updated_at) * self.per_second)
        self._updated_at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


UNNAMED: Final = Grant("", EVERYTHING)
"""The grant of every request that needs no credential."""


class Credentials:
    """The users and tokens that the files had at one time. For the event loop's thread only."""

    def __init__(self, users: Mapping[str, str], tokens: Mapping[str, Token], comparisons: Comparisons) -> None:
        self._known: dict[tuple[str, str], tuple[str, Grant]] = {}
        """(scheme, name) → (bcrypt hash, grant)."""
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
        """Whether requests need a credential."""
        return bool(self._known)

    def remembered(self, header: str) -> Grant | None:
        """The grant of this header, if it is known without a comparison."""
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
        """The grant of this header, after a comparison, which counts as the client's. Raises Unauthorized, and
        Overloaded if too many comparisons wait."""
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
        """(the comparison, the grant if it succeeds). An unknown name is compared too, with the hash of a known name
        that is always the same for this name; otherwise the duration would reveal which names are known."""
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
        """(scheme, name, secret) of the header. Raises Unauthorized if it cannot be decoded."""
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


def _put(entries: dict[bytes, Entry], digest: bytes, entry: Entry, entries_max: int) -> None:
    """Append the entry, and remove the oldest one if there are `entries_max`."""
    entries.pop(digest, None)
    if len(entries) >= entries_max:
        del entries[next(iter(entries))]
    entries[digest] = entry
