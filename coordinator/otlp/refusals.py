"""What of a request is not stored, for the partial success of its answer."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN_MAX = 5
"""How many refused items an answer names; it gives the number of all."""
TEXT_MAX = 500


@dataclass(slots=True)
class Refusals:
    """`count`: items (data points, records) that are refused; `texts`: the first of them, and of what else is left out;
    `others`: how many of those are no items."""

    count: int = 0
    others: int = 0
    texts: list[str] = field(default_factory=list)

    def refuse(self, text: str, items: int = 1) -> None:
        self.count += items
        self._show(text)

    def leave_out(self, text: str) -> None:
        """Something that is no item, such as an exemplar."""
        self.others += 1
        self._show(text)

    def _show(self, text: str) -> None:
        if len(self.texts) < SHOWN_MAX and text not in self.texts:
            self.texts.append(text[:TEXT_MAX])

    def message(self, items: str) -> str:
        """All of it as one text; `items`: what the items are called. "" if nothing was refused."""
        if not self.texts:
            return ""
        whole = f"{self.count} {items} refused: " if self.count else "left out: "
        return whole + "; ".join(self.texts) + ("; and more" if self.count + self.others > len(self.texts) else "")
