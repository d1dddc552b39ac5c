"""The parts of a request that are not stored, for the partial success in the response."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN_MAX = 5
"""How many refused items a response names; the others are only counted."""
TEXT_MAX = 500


@dataclass(slots=True)
class Refusals:
    """`count`: number of refused items (data points, records). `others`: number of other things that are left out.
    `texts`: the first reasons for either."""

    count: int = 0
    others: int = 0
    texts: list[str] = field(default_factory=list)

    def refuse(self, text: str, items: int = 1) -> None:
        self.count += items
        self._show(text)

    def leave_out(self, text: str) -> None:
        """Note something that is left out and is no item, such as an exemplar."""
        self.others += 1
        self._show(text)

    def _show(self, text: str) -> None:
        if len(self.texts) < SHOWN_MAX and text not in self.texts:
            self.texts.append(text[:TEXT_MAX])

    def message(self, items: str) -> str:
        """All refusals as one text; "" if there are none. `items`: the name of the items."""
        if not self.texts:
            return ""
        summary = f"{self.count} {items} refused: " if self.count else "left out: "
        return summary + "; ".join(self.texts) + ("; and more" if self.count + self.others > len(self.texts) else "")
