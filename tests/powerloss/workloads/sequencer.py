"""The log's sequencer: numbers, segments, what was revoked."""

from __future__ import annotations

import random
from pathlib import Path

from coordinator.log.sequencer import RESERVE_AHEAD, Revoked, Sequencer
from shared.control import LocalControl
from shared.settings import Settings
from tests.powerloss.history import History, require
from tests.powerloss.recording import Recorder

STEPS = 60
SEGMENT_BYTES = 1024


def _opened(root: Path) -> Sequencer:
    sequencer = Sequencer(
        LocalControl(root / "log"), Settings(log_segment_bytes=SEGMENT_BYTES, log_segment_age_ms=1 << 40)
    )
    sequencer.open()
    return sequencer


def run(root: Path, recorder: Recorder, chance: random.Random) -> None:
    sequencer = _opened(root)
    for _ in range(STEPS):
        how = chance.random()
        if how < 0.5:
            count = chance.choice((1, 1000, RESERVE_AHEAD // 2))
            done = recorder.begin(["reserve", count])
            done([sequencer.reserve(count, chance.randrange(SEGMENT_BYTES)), sequencer.segments[-1].id])
        elif how < 0.65:
            recorder.act(["segment", sequencer.next], sequencer.start_segment)
        elif how < 0.8:
            number = sequencer.next
            sequencer.revoked.append(Revoked(0, number, [(number, number + 1)], [0]))
            recorder.act(["revoke", number], sequencer.save)
        elif how < 0.85:
            recorder.act(["settle", sequencer.next], lambda: _settle(sequencer))  # noqa: B023 (called at once)
        elif how < 0.92:
            kept = max(0, len(sequencer.segments) - 2)
            first = sequencer.segments[kept].id if sequencer.segments else 0
            recorder.act(["drop", first], lambda: sequencer.drop_segments(kept))  # noqa: B023 (called at once)
        else:
            if chance.random() < 0.5:
                recorder.act(["stop"], sequencer.close)
            sequencer = _opened(root)
    sequencer.close()


def _settle(sequencer: Sequencer) -> None:
    sequencer.settled = sequencer.next
    sequencer.save()


def check(root: Path, history: History) -> None:
    """It opens; no number is given twice; segments, revocations and the settled mark are those acknowledged."""
    sequencer = _opened(root)
    tried = {kind: [a.told[1] for a in history.acts if a.told[0] == kind] for kind in ("revoke", "settle", "drop")}
    done = {kind: [a.told[1] for a in history.acts if a.told[0] == kind and a.is_done] for kind in tried}
    above = segment = 0
    for act in history.acts:
        if act.told[0] == "reserve" and act.is_done:
            above, segment = act.result[0] + act.told[1], act.result[1]
    require(sequencer.reserve(1) >= above, f"a number below {above} is given again")
    require(sequencer.segments[-1].id >= segment, f"segment {segment} is forgotten")
    revoked = {entry.group for entry in sequencer.revoked}
    require(revoked >= set(done["revoke"]), f"revocations {sorted(set(done['revoke']) - revoked)} are forgotten")
    require(revoked <= set(tried["revoke"]), "a revocation is invented")
    require(sequencer.settled >= max(done["settle"], default=0), "the settled mark went back")
    require(sequencer.settled <= max(tried["settle"], default=0), "the settled mark is invented")
    first = sequencer.segments[0].id
    require(max(done["drop"], default=0) <= first <= max(tried["drop"], default=0), f"the first segment is {first}")
