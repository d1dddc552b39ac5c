"""Parts of random queries: selectors, where in time they are evaluated, and groupings."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from tests.conformance.generated_data import METRICS, Draw

GROUPINGS = (
    "",
    "",
    " by (job)",
    " by (instance, zone)",
    " by (nothing)",
    " without (instance)",
    " without (job, zone)",
    " by ()",
    " by (__name__)",
    " by (__name__, job)",
)


@dataclass(frozen=True)
class Text:
    """A query, or a part of one."""

    text: str
    exact: bool = True


def duration(ms: int) -> str:
    return f"{ms}ms" if ms % 1000 else f"{ms // 1000}s"


@st.composite
def shifts(draw: Draw) -> str:
    """Mostly nothing; else `offset`, `@`, or both in either order."""
    kind = draw(st.integers(0, 11))
    offset = f" offset {draw(st.sampled_from(('15s', '1m', '-30s', '7s', '5m')))}"
    at = f" @ {draw(st.sampled_from(('100', '0', '300.5', 'start()', 'end()')))}"
    return {8: offset, 9: at, 10: offset + at, 11: at + offset}.get(kind, "")


@st.composite
def selectors(draw: Draw) -> str:
    name = draw(st.sampled_from((*METRICS, *METRICS, *METRICS, "lat_bucket", "nothing")))
    matcher = draw(
        st.sampled_from(
            (
                "",
                "",
                "",
                '{job="a"}',
                '{job!="a"}',
                '{zone=""}',
                '{zone!=""}',
                '{instance=~"1|2"}',
                '{instance!~"1", job=~".+"}',
            )
        )
    )
    if draw(st.integers(0, 14)) == 0:
        return str(
            draw(st.sampled_from(('{__name__=~"gauge|up_total", job="a"}', '{job="b"}', '{__name__=~".+_total"}')))
        )
    return f"{name}{matcher}"
