"""What a write brings to a shard, as columns: samples, and exemplars."""

from __future__ import annotations

from collections.abc import Sequence

from shared import exemplar_frames, sample_frames
from shared.exemplar_frames import ExemplarColumns
from shared.sample_frames import SampleColumns
from shared.wire import Frame

Arrival = SampleColumns | ExemplarColumns


def parse(frame: Frame) -> Arrival:
    """The content of one frame of `series.write`. Raises Internal for anything else."""
    return exemplar_frames.parse(frame) if exemplar_frames.is_exemplars(frame) else sample_frames.parse(frame)


def joined(arrivals: Sequence[Arrival]) -> tuple[SampleColumns | None, ExemplarColumns | None]:
    """All samples, and all exemplars, in their order; None where there are none."""
    samples = [arrival for arrival in arrivals if isinstance(arrival, SampleColumns)]
    exemplars = [arrival for arrival in arrivals if isinstance(arrival, ExemplarColumns)]
    return sample_frames.joined(samples) if samples else None, exemplar_frames.joined(exemplars) if exemplars else None
