"""The items of an import that were not stored, with the reasons, and how much interpreted work it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shared.errors import TooLarge

SHOWN_MAX = 5
"""How many refusals a message shows; it gives the number of all."""
WORK_US_MAX = 10_000_000
"""The limit on the interpreted work of one import, about, in µs. The bytes of the body bound the work of kernels, but a
few bytes can be a row, a set of labels or a number that takes an interpreter microseconds."""
ROW_US, LABEL_SET_US, NUMBER_US, HISTOGRAM_BYTE_US = 3.0, 15.0, 0.5, 0.3


@dataclass(slots=True)
class Refusals:
    """`what`: the kind of items that are refused, such as lines. `texts`: the first refusals, with their reasons."""

    what: str
    texts: list[str] = field(default_factory=list)
    count: int = 0
    work_us: float = 0.0

    @property
    def item(self) -> str:
        """The singular, such as line."""
        return self.what.removesuffix("s")

    def add(self, text: str) -> None:
        """Refuse an item."""
        self.count += 1
        if len(self.texts) < SHOWN_MAX:
            self.texts.append(text)

    def add_all(self, items: Sequence[int], text_of: Callable[[int], str]) -> None:
        """Refuse all of these; texts are made only for those that are shown."""
        self.texts += map(text_of, items[: max(0, SHOWN_MAX - len(self.texts))])
        self.count += len(items)

    def spend(self, us: float) -> None:
        """Raises TooLarge when the import is too much interpreted work."""
        self.work_us += us
        if self.work_us > WORK_US_MAX:
            raise TooLarge(
                f"the import has too many {self.what}, sets of labels, long numbers or histograms for one request; "
                "send it in smaller parts"
            )

    def text(self, stored: str) -> str:
        """The message: how much was stored, and what was refused."""
        more = self.count - len(self.texts)
        tail = f"; and {more} more" if more else ""
        return f"{stored} stored, these {self.what} refused: {'; '.join(self.texts)}{tail}"
