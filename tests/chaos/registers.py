"""The record of things that have one value at a time: samples, vectors, cursors.

For each key it knows which values a read may show now. A write in doubt adds one; an acknowledged write leaves only
its own, and those of writes nobody waited for, which may still be carried out at any time.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.findings import Findings

Key = Any
"""Hashable; its shape is the area's."""
Value = int | None
"""None: it is not there."""


@dataclass(slots=True)
class _State:
    possible: set[Value] = field(default_factory=lambda: {None})
    abandoned: set[Value] = field(default_factory=set)
    sent: set[Value] = field(default_factory=set)
    changed_at: int = 0


class Registers:
    """`stamp` rises with every change: a read takes it before it asks, and is checked strictly for the keys that
    nobody has written since."""

    def __init__(self, area: str, findings: Findings) -> None:
        self.area = area
        self.findings = findings
        self._lock = threading.Lock()
        self._states: dict[Key, _State] = {}
        self._stamp = 0
        self.is_file_lost = False
        """A file is lost as a whole: an answer that says so may show what the file had replaced."""
        self._lost: set[Key] = set()
        self._is_lost_silently = False
        self.older = 0
        """How often an answer with a warning showed an older value because of one of these."""

    def forked(self, findings: Findings) -> Registers:
        """A copy for another history that begins alike."""
        other = Registers(self.area, findings)
        other._states, other._stamp = copy.deepcopy(self._states), self._stamp
        return other

    @property
    def stamp(self) -> int:
        with self._lock:
            return self._stamp

    def known(self) -> list[Key]:
        with self._lock:
            return list(self._states)

    def acknowledged(self) -> int:
        with self._lock:
            return sum(None not in state.possible for state in self._states.values())

    def deleted(self) -> list[Key]:
        """Those that may be gone by a deletion."""
        with self._lock:
            return [key for key, state in self._states.items() if None in state.possible and None in state.sent]

    def possible(self, key: Key) -> set[Value]:
        with self._lock:
            state = self._states.get(key)
            return set(state.possible) if state else {None}

    def lose(self, keys: Iterable[Key], *, silently: bool) -> None:
        """Damage has hit what says the values of these keys: they may be missing or older from now on, in answers that
        say that something is missing, or (`silently`) in all. A write that is acknowledged later counts again."""
        with self._lock:
            self._lost.update(keys)
            self._is_lost_silently = silently

    def begin(self, writes: Mapping[Key, Value]) -> None:
        """They are about to be sent."""
        with self._lock:
            self._stamp += 1
            for key, value in writes.items():
                state = self._states.setdefault(key, _State())
                state.possible.add(value)
                state.sent.add(value)
                state.changed_at = self._stamp

    def acknowledge(self, writes: Mapping[Key, Value]) -> None:
        with self._lock:
            self._stamp += 1
            for key, value in writes.items():
                state = self._states[key]
                state.possible = {value} | state.abandoned
                self._lost.discard(key)
                state.changed_at = self._stamp

    def refuse(self, writes: Mapping[Key, Value]) -> None:
        """The answer says that nothing was written, of values that were sent this once."""
        with self._lock:
            self._stamp += 1
            for key, value in writes.items():
                self._states[key].possible.discard(value)
                self._states[key].changed_at = self._stamp

    def abandon(self, writes: Mapping[Key, Value]) -> None:
        """The client has left before the answer: they may be carried out whenever."""
        with self._lock:
            for key, value in writes.items():
                self._states[key].abandoned.add(value)

    def check(
        self, shown: Mapping[Key, Value], asked: Iterable[Key], stamp: int, *, complete: bool, final: bool, what: str
    ) -> None:
        """An answer showed `shown` of the keys `asked`; `complete`: it says that nothing is missing; `final`: nothing
        is written meanwhile and everything is healed."""
        with self._lock:
            for key, value in shown.items():
                is_lost = key in self._lost and (self._is_lost_silently or not complete)
                self._check_shown(key, value, stamp, what, excused=is_lost or (self.is_file_lost and not complete))
            if complete:
                for key in asked:
                    state = self._states.get(key)
                    if key in shown or state is None or state.changed_at > stamp or None in state.possible:
                        continue
                    if key in self._lost and self._is_lost_silently:
                        continue
                    kind = "lost" if final else "unlabelled"
                    self._add(kind, f"{what}: {key} should be one of {state.possible}, and is not in the answer")

    def _check_shown(self, key: Key, value: Value, stamp: int, what: str, *, excused: bool) -> None:
        state = self._states.get(key)
        if state is None or value not in state.sent:
            self._add("invented", f"{what}: {key} is {value}, sent were {state.sent if state else 'none'}")
        elif state.changed_at <= stamp and value not in state.possible:
            if excused:
                self.older += 1
                return
            self._add("stale", f"{what}: {key} is {value}, it should be one of {state.possible}")

    def _add(self, kind: str, text: str) -> None:
        self.findings.add(kind, self.area, text)
