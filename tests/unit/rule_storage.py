"""A storage for rules in memory: vectors that a test sets, and what was written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from coordinator.rules.alerts import Vector
from shared.errors import BadData, TriptychError
from shared.labels import Labels


def labels_of(text: Mapping[str, str]) -> Labels:
    return tuple(sorted(text.items()))


def series(value: float = 1.0, **labels: str) -> tuple[Labels, float]:
    name = labels.pop("name", "")
    return labels_of({**({"__name__": name} if name else {}), **labels}), value


class FakeStorage:
    """`answers`: expression → its vector, or an error; `asked` and `written`: in order, with their times;
    `invalid`: series that are refused."""

    def __init__(self) -> None:
        self.answers: dict[str, Vector | TriptychError | Callable[[int], Vector]] = {}
        self.asked: list[tuple[str, int]] = []
        self.written: list[tuple[int, dict[Labels, float], set[Labels]]] = []
        self.refuses: TriptychError | None = None
        self.invalid: set[Labels] = set()
        self.order: list[str] = []

    async def query(self, expr: str, time_ms: int, lookback_ms: int | None = None) -> Vector:
        self.asked.append((expr, time_ms))
        self.order.append(f"query {expr}")
        answer = self.answers.get(expr, [])
        if isinstance(answer, TriptychError):
            raise answer
        return answer(time_ms) if callable(answer) else answer

    async def query_all(self, exprs: Sequence[str], time_ms: int) -> Sequence[Vector | TriptychError]:
        answers: list[Vector | TriptychError] = []
        for expr in exprs:
            try:
                answers.append(await self.query(expr, time_ms))
            except TriptychError as error:
                answers.append(error)
        return answers

    async def write(self, time_ms: int, series: Vector, ended: Sequence[Labels]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.order.append("write")
        refused = {labels for labels, _ in series if labels in self.invalid} | (self.invalid & set(ended))
        valid = {labels: value for labels, value in series if labels not in refused}
        self.written.append((time_ms, valid, set(ended) - refused))
        if refused:
            raise BadData(f"{len(refused)} series of the result were not stored")
