"""What may be left of samples that nobody has synced: the first writes, each whole, and all that was sealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.powerloss.history import Act, History, require, some

Samples = dict[tuple[str, int], float]


def match(held: Samples, history: History) -> None:
    """Nothing is invented or lost up to the last full sealing; of the last write that shows, and of all before it,
    everything does that was not replaced or removed later: only a tail is lost; what is replaced by a write that shows
    does not come back."""
    acts = history.acts
    barrier = max((at + 1 for at, act in enumerate(acts) if act.is_done and act.told == ["seal", None]), default=0)
    author = {tuple(own): at for at, act in enumerate(acts) if act.told[0] == "write" for own in act.told[1]}
    invented = [(own, value) for own, value in held.items() if (*own, value) not in author]
    require(not invented, f"samples were invented: {some(invented)}")
    shown = {own: author[*own, value] for own, value in held.items()}
    last = max((at for at in set(shown.values()) if _is_journaled(acts, at, shown)), default=-1)
    for at, act in enumerate(acts):
        if act.told[0] != "write" or at > max(last, barrier - 1):
            continue
        for key in [(job, time_ms) for job, time_ms, _ in act.told[1]]:
            if shown.get(key, -1) < at and not _removed(acts[at + 1 :], key):
                what = "is lost, though sealed" if at < barrier else f"is missing, and act {last} shows"
                require(False, f"{key} of act {at} {what}; act {shown.get(key)} shows there")
    for key, at in shown.items():
        deleted = [a for a in acts[at + 1 : barrier] if a.told[0] == "delete" and _removes(a, key)]
        require(not deleted, f"{key} was deleted, and is back")


def _is_journaled(acts: Sequence[Act], at: int, shown: Mapping[tuple[str, int], int]) -> bool:
    """Whether the write shows by what the journal says of it: what was sealed shows in any case."""
    sealed_to = max((act.told[1] for act in acts[at:] if act.told[0] == "seal" and act.told[1] is not None), default=0)
    return any(own_at == at and time_ms >= sealed_to for (_, time_ms), own_at in shown.items())


def _removed(acts: Sequence[Act], key: tuple[str, int]) -> bool:
    return any(_removes(act, key) for act in acts)


def _removes(act: Act, key: tuple[str, int]) -> bool:
    job, at = key
    if act.told[0] == "drop":
        return any(start <= at <= end for start, end in act.told[1])
    return act.told[0] == "delete" and act.told[1] == job and act.told[2] <= at <= act.told[3]
