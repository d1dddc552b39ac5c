"""Label sets of few series, as several workers send them for the same panel again and again.

To decode them, to put them in order and to render them takes longer than all that is done with the numbers beside them.
They are known by the bytes in which they are sent, so nothing makes them invalid.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from shared.derived import Derived
from shared.labels import LabelFrame, Symbols, concat
from shared.process.array_memory import uncounted
from shared.wire import Frame, size_of

SERIES_MAX = 64
SENT_BYTES_MAX = 32 << 10
"""Label sets of more series are not kept, nor longer ones even looked for."""
DERIVED_BYTES = 4096
"""Of each series, for what is made from its labels: their order, and their text with and without names. Usual ones take
a quarter of it."""
BYTES_MAX = 32 << 20
COPIES = 4
"""The strings of a table and its dictionary take about so many times the bytes that were sent."""

Sent = tuple[bytes, ...]
"""The two frames of the label sets of each worker."""


@dataclass(frozen=True, slots=True)
class JoinedLabels:
    """The label sets of each worker, and those of all in this order, in codes of a table of their own."""

    parts: tuple[LabelFrame, ...]
    labels: LabelFrame


class LabelMemory:
    """The last ones, of BYTES_MAX at most. Safe to use from several threads: nobody changes what is kept."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: OrderedDict[Sent, JoinedLabels] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """What is kept takes so much memory at most."""
        return self._bytes

    def joined(self, sent: Sequence[Sequence[Frame]]) -> JoinedLabels | None:
        """The label sets that workers have sent (two frames of each), None if these are long."""
        if sum(size_of(frame) for part in sent for frame in part) > SENT_BYTES_MAX:
            return None
        key = tuple(bytes(frame) for part in sent for frame in part)
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                self._kept.move_to_end(key)
                return known
        with uncounted():
            made = _joined(key)
        if made.labels.derived is not None:
            self._keep(key, made)
        return made

    def _keep(self, key: Sent, made: JoinedLabels) -> None:
        with self._lock:
            if key not in self._kept:
                self._bytes += _size_bytes(key, made)
            self._kept[key] = made
            while self._bytes > BYTES_MAX:
                self._bytes -= _size_bytes(*self._kept.popitem(last=False))


def _joined(sent: Sent) -> JoinedLabels:
    symbols = Symbols()
    parts = tuple(LabelFrame.from_frames(sent[at : at + 2], symbols) for at in range(0, len(sent), 2))
    labels = concat(parts)
    if labels.size <= SERIES_MAX:
        labels.derived = Derived(DERIVED_BYTES * labels.size)
    return JoinedLabels(parts, labels)


def _size_bytes(key: Sent, made: JoinedLabels) -> int:
    frames = *made.parts, made.labels
    return (1 + COPIES) * sum(map(len, key)) + sum(frame.bytes_with_derived() for frame in frames)
