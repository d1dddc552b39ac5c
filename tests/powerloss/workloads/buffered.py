"""What may be left of samples that nobody has synced: each write whole or not at all, and all that was sealed."""

from __future__ import annotations

from collections.abc import Sequence

from tests.powerloss.history import Act, History, require, some

Samples = dict[tuple[str, int], float]


def match(held: Samples, history: History) -> None:
    """Nothing is invented or lost up to the last full sealing; of a write after it that shows at all, everything does
    that was not replaced or removed later; what is replaced by a write that shows does not come back."""
    acts = history.acts
    barrier = max((at + 1 for at, act in enumerate(acts) if act.is_done and act.told == ["seal", None]), default=0)
    author = {tuple(own): at for at, act in enumerate(acts) if act.told[0] == "write" for own in act.told[1]}
    invented = [(own, value) for own, value in held.items() if (*own, value) not in author]
    require(not invented, f"samples were invented: {some(invented)}")
    shown = {own: author[*own, value] for own, value in held.items()}
    for at, act in enumerate(acts):
        if act.told[0] != "write":
            continue
        keys = [(job, time_ms) for job, time_ms, _ in act.told[1]]
        visible = [key for key in keys if shown.get(key) == at]
        sealed_to = max((a.told[1] for a in acts[at:] if a.told[0] == "seal" and a.told[1] is not None), default=0)
        is_journaled = any(time_ms >= sealed_to for _, time_ms in visible)
        if at >= barrier and not is_journaled:
            continue
        for key in keys:
            if shown.get(key, -1) < at and not _removed(acts[at + 1 :], key):
                what = "is lost, though sealed" if at < barrier else "is missing of a write that shows"
                require(False, f"{key} of act {at} {what}; act {shown.get(key)} shows there")
    for key, at in shown.items():
        deleted = [a for a in acts[at + 1 : barrier] if a.told[0] == "delete" and _removes(a, key)]
        require(not deleted, f"{key} was deleted, and is back")


def _removed(acts: Sequence[Act], key: tuple[str, int]) -> bool:
    return any(_removes(act, key) for act in acts)


def _removes(act: Act, key: tuple[str, int]) -> bool:
    job, at = key
    if act.told[0] == "drop":
        return any(start <= at <= end for start, end in act.told[1])
    return act.told[0] == "delete" and act.told[1] == job and act.told[2] <= at <= act.told[3]
