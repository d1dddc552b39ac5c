"""Policies of the log, which say which records of the keys with a prefix are kept: a document that only the coordinator
writes, and the background work that has the shards apply it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from functools import partial

import msgspec

from coordinator.fanout.links import Links
from coordinator.log import policy_document
from coordinator.log.frontier import Frontier
from coordinator.log.policy_document import Policy
from coordinator.log.reads import KeySelection, Reader
from coordinator.log.recovery import Recovery
from coordinator.log.state_writes import StateWrites
from shared.control import Control
from shared.errors import BadData, ConfigError, NotFound, TriptychError, Unavailable
from shared.messages import log
from shared.settings import Settings
from shared.telemetry import event
from shared.wall_clock import Ages
from shared.wire import pack, unpack

POLICIES_MAX = 100
"""The keys of new records are compared with the prefixes of all policies."""
KEEP_MAX = 1_000_000
SHARD_PASS_S = 60.0
"""A pass over one shard that takes longer continues after the other shards have had their turn."""
REST_S = 0.02
"""The shortest rest between two slices of a pass. A slice takes about 0.1 s."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Policies:
    """The policies by name. A change is on disk before memory has it and the method returns. For the event loop's
    thread only."""

    def __init__(self, control: Control, writes: StateWrites) -> None:
        self._control = control
        self._writes = writes
        self._by_name: dict[str, Policy] = {}
        self._changing = asyncio.Lock()

    def load(self) -> None:
        """Read the document, if it exists. Raises ConfigError when it cannot be used."""
        where = self._control.location(policy_document.NAME)
        try:
            if not self._control.exists(policy_document.NAME):
                return
            content = self._control.read(policy_document.NAME)
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}") from error
        try:
            policies = policy_document.decode(content)
        except ValueError as error:
            raise ConfigError(
                f"{where} is damaged ({error}); restore it, or remove it: the log then has no policies until "
                "they are put again"
            ) from error
        self._by_name = {policy.name: policy for policy in policies}

    def all(self) -> list[Policy]:
        return sorted(self._by_name.values(), key=lambda policy: policy.name)

    def get(self, name: str) -> Policy:
        """Raises NotFound."""
        if name not in self._by_name:
            raise NotFound(f"there is no policy {name!r}")
        return self._by_name[name]

    async def put(self, policy: Policy) -> None:
        """Add the policy, or replace the one with the same name. Raises BadData, Unavailable."""
        if not _NAME.fullmatch(policy.name):
            raise BadData(f"the policy's name is {policy.name!r}; it has 1 to 64 letters, digits, '_', '-' and '.'")
        if not policy.keep_newest and not policy.max_age_ms:
            raise BadData("a policy must have `keepNewest`, `maxAge`, or both")
        async with self._changing:
            others = {name: other for name, other in self._by_name.items() if name != policy.name}
            same = next((other.name for other in others.values() if other.prefix == policy.prefix), None)
            if same is not None:
                raise BadData(f"the policy {same!r} has the same prefix; a prefix may have one policy")
            if len(others) >= POLICIES_MAX:
                raise BadData(f"there are {POLICIES_MAX} policies, which is the limit")
            await self._write({**others, policy.name: policy})

    async def remove(self, name: str) -> None:
        """Raises NotFound, Unavailable."""
        async with self._changing:
            self.get(name)
            await self._write({other: policy for other, policy in self._by_name.items() if other != name})

    async def _write(self, policies: dict[str, Policy]) -> None:
        content = policy_document.encode(policies.values())
        try:
            await self._writes.run(partial(self._control.replace, policy_document.NAME, content))
        except OSError as error:
            where = self._control.location(policy_document.NAME)
            raise Unavailable(f"the log's policies {where} cannot be written: {error.strerror}") from error
        self._by_name = policies


class PolicyPasses:
    """Has the shards apply the policies, one shard after another, every TRIPTYCH_LOG_POLICIES_INTERVAL."""

    def __init__(
        self,
        settings: Settings,
        links: Links,
        frontier: Frontier,
        recovery: Recovery,
        reader: Reader,
        ages: Ages,
        policies: Policies,
    ) -> None:
        self._settings = settings
        self._links = links
        self._frontier = frontier
        self._reader = reader
        self._ages = ages
        self._recovery = recovery
        self._policies = policies
        self._complete_at = time.monotonic()

    @property
    def age_s(self) -> float:
        """Time since the beginning of the last pass that was complete on all shards; 0 without policies."""
        return time.monotonic() - self._complete_at if self._policies.all() else 0.0

    async def run(self) -> None:
        await self._recovery.wait_for_state()
        while True:
            began = time.monotonic()
            if await self._pass():
                self._complete_at = began
            await asyncio.sleep(self._settings.log_policies_interval_ms / 1000)

    async def _pass(self) -> bool:
        """Run a pass on each shard. Returns whether it is complete on all of them."""
        policies = self._policies.all()
        if not policies:
            return True
        settled = self._frontier.settled
        ages = {one.max_age_ms for one in policies if one.max_age_ms}
        ages |= {one.tombstone_age_ms for one in policies if one.keep_newest}
        below: dict[int, int] = {}
        try:
            for age_ms in ages:
                made_ms = self._ages.before_ms(age_ms)
                first = 0 if made_ms is None else await self._reader.sequence_at(made_ms, KeySelection(None))
                below[age_ms] = min(first, settled)
        except TriptychError as error:  # a shard is missing: this pass applies `keep_newest` only
            event(logging.DEBUG, "ages in policies of the log will be applied later", why=error)
        body = log.PoliciesBody(
            policies=[log.KeyPolicy(one.prefix, one.keep_newest, one.max_age_ms) for one in policies],
            too_old=[below.get(one.max_age_ms, 0) if one.max_age_ms else 0 for one in policies],
            upto=settled,
            closed=0,
            is_new=True,
            expired=[below.get(one.tombstone_age_ms, 0) if one.keep_newest else 0 for one in policies],
        )
        complete = [await self._shard_pass(shard, body) for shard in range(self._links.shards)]
        return all(complete) and len(below) == len(ages)

    async def _shard_pass(self, shard: int, body: log.PoliciesBody) -> bool:
        """Run slices on one shard. Returns whether the pass is complete. A shard that is missing or fails has its turn
        in the next pass."""
        give_up = time.monotonic() + SHARD_PASS_S
        is_new = True
        while time.monotonic() < give_up:
            began = time.monotonic()
            body = msgspec.structs.replace(body, closed=self._frontier.readable, is_new=is_new)
            timeout_s = self._settings.query_timeout_ms / 1000
            try:
                (reply,) = await self._links.call("log.policies", shards=[shard], body=pack(body), timeout_s=timeout_s)
            except TriptychError as error:
                event(logging.DEBUG, "policies of the log will be applied later", shard=shard, why=error)
                return False
            if not unpack(reply.message.body, log.PoliciesReply).more:
                return True
            is_new = False
            # So policies take at most about half of the time of one thread.
            await asyncio.sleep(max(REST_S, time.monotonic() - began))
        return False
