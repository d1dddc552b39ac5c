"""All attacks by name, with what the bystander may notice of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from loadtest.attacks import bodies, connections, queries
from loadtest.attacks.sending import Prepare, repeated


@dataclass(frozen=True, slots=True)
class Attack:
    """`wait_s` is the longest wait of the bystander, `growth_mb` how much memory may grow in all processes together
    while it goes on; None: not among the targets. `refused`: every request of it must be answered with 4xx."""

    name: str
    what: str
    prepare: Prepare
    wait_s: float
    growth_mb: float | None = None
    refused: bool = False


BODY_WAIT_S, BODY_GROWTH_MB = 0.3, 800.0
CONNECTION_WAIT_S, CONNECTION_GROWTH_MB = 0.1, 200.0

ATTACKS = (
    Attack("regex", "8 costly regular expressions", repeated(queries.costly_expressions), 0.5),
    Attack(
        "label-replace", "`label_replace` with 80,000 × `a?`", repeated(queries.long_replacement), 0.2, refused=True
    ),
    Attack("grid", "16 leaves of 11,000 steps over 4,500 samples", repeated(queries.wide_grid), 0.5, 1200),
    Attack("subqueries", "4 one-year subqueries", repeated(queries.long_subqueries), 0.5, 1200),
    Attack("quantiles", "20 × `quantile_over_time` of everything", repeated(queries.quantiles_of_everything), 0.5),
    Attack("bodies-log", "63 MB of tiny records × 3", repeated(bodies.records), BODY_WAIT_S, BODY_GROWTH_MB),
    Attack(
        "bodies-vectors", "63 MB of tiny vectors and ids × 3", repeated(bodies.vectors), BODY_WAIT_S, BODY_GROWTH_MB
    ),
    Attack("bodies-components", "63 MB of tiny numbers × 3", repeated(bodies.components), BODY_WAIT_S, BODY_GROWTH_MB),
    Attack(
        "bodies-series", "255 MB of tiny series, compressed × 3", repeated(bodies.series), BODY_WAIT_S, BODY_GROWTH_MB
    ),
    Attack("bodies-nested", "63 MB of nested JSON × 3", repeated(bodies.nested), BODY_WAIT_S, BODY_GROWTH_MB),
    Attack("bodies-forms", "63 MB of parameters × 3", repeated(bodies.forms), BODY_WAIT_S, BODY_GROWTH_MB),
    Attack("heads", "1,100 unfinished heads", connections.unfinished_heads, CONNECTION_WAIT_S, CONNECTION_GROWTH_MB),
    Attack("idle", "2,000 idle connections", connections.idle, CONNECTION_WAIT_S, CONNECTION_GROWTH_MB),
    Attack(
        "followers", "400 deaf followers, 1 MB/s", connections.deaf_followers, CONNECTION_WAIT_S, CONNECTION_GROWTH_MB
    ),
    Attack("slow-bodies", "200 bodies that drip", connections.slow_bodies, CONNECTION_WAIT_S, CONNECTION_GROWTH_MB),
    Attack(
        "unread", "50 large answers never read", connections.unread_answers, CONNECTION_WAIT_S, CONNECTION_GROWTH_MB
    ),
)


def named(patterns: Sequence[str]) -> list[Attack]:
    """Those whose name one of the shell patterns fits, in the order of ATTACKS; all without patterns. Raises ValueError
    for a pattern that fits none."""
    for pattern in patterns:
        if not any(fnmatchcase(attack.name, pattern) for attack in ATTACKS):
            names = ", ".join(attack.name for attack in ATTACKS)
            raise ValueError(f"no attack has a name like {pattern!r}; the names are {names}")
    return [a for a in ATTACKS if not patterns or any(fnmatchcase(a.name, pattern) for pattern in patterns)]
