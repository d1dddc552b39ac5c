"""What of an import was not stored, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

SHOWN_MAX = 5
"""How many refusals a message has; it gives the number of all."""


@dataclass(slots=True)
class Refusals:
    """`what`: the items that are refused, such as lines. `texts`: the first of them, with their reasons."""

    what: str
    texts: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, text: str, count: int = 1) -> None:
        """Refuse an item, or several of which the text is the first one's."""
        self.count += count
        if len(self.texts) < SHOWN_MAX:
            self.texts.append(text)

    def text(self, stored: str) -> str:
        """The message: what was stored nevertheless, and what was not."""
        more = self.count - len(self.texts)
        tail = f"; and {more} more" if more else ""
        return f"{stored} stored, these {self.what} refused: {'; '.join(self.texts)}{tail}"
