"""What a write brings to a shard: samples and exemplars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared import exemplar_frames, reference_frames, sample_frames
from shared.errors import Unavailable
from shared.exemplar_frames import ExemplarColumns
from shared.reference_frames import ReferenceColumns
from shared.sample_frames import SampleColumns
from shared.wire import Frame
from worker.series import exemplar_record, sample_record
from worker.series.exemplar_record import ExemplarRecord
from worker.series.index.index import Index
from worker.series.sample_record import Written

Columns = SampleColumns | ExemplarColumns | ReferenceColumns


@dataclass(slots=True, eq=False)
class Arrival:
    """One frame as it came, and the numbers of the series of its runs, int64[runs], once the index has given them.
    `refusal`: why it was not stored, if others of its commit were."""

    columns: Columns
    series: NDArray[np.int64] | None = None
    refusal: Unavailable | None = None

    def resolve(self, index: Index, series_max: int) -> None:
        """Ask the index for the numbers; new series have them below `series_max`. The caller has its lock, and has it
        register series that are new."""
        columns = self.columns
        if isinstance(columns, ReferenceColumns):
            self.series = columns.series
        else:
            self.series = index.resolve(columns.data, columns.starts, columns.ends, columns.hashes, series_max)


def parse(frame: Frame) -> Columns:
    """The content of one frame of `series.write`. Raises Internal for anything else."""
    if reference_frames.is_references(frame):
        return reference_frames.parse(frame)
    return exemplar_frames.parse(frame) if exemplar_frames.is_exemplars(frame) else sample_frames.parse(frame)


def numbered(arrivals: Sequence[Arrival]) -> list[ReferenceColumns] | None:
    """The frames, if they are all of numbers of series and have no start timestamps."""
    frames = list[ReferenceColumns]()
    for arrival in arrivals:
        if not isinstance(arrival.columns, ReferenceColumns) or arrival.columns.has_starts:
            return None
        frames.append(arrival.columns)
    return frames


def accepted(arrivals: Sequence[Arrival], refusal: Unavailable) -> Sequence[Arrival]:
    """The resolved arrivals whose series all have numbers; the others get this refusal. Raises it if none is left."""
    refused = [arrival for arrival in arrivals if arrival.series is not None and (arrival.series < 0).any()]
    if len(refused) == len(arrivals):
        raise refusal
    for arrival in refused:
        arrival.refusal = refusal
    return [arrival for arrival in arrivals if arrival.refusal is None] if refused else arrivals


def joined(arrivals: Sequence[Arrival]) -> tuple[Written | None, ExemplarRecord | None]:
    """All samples, and all exemplars, of resolved arrivals in their order; None where there are none."""
    samples, exemplars = list[Written](), list[ExemplarRecord]()
    for arrival in arrivals:
        assert arrival.series is not None
        if isinstance(arrival.columns, ExemplarColumns):
            exemplars.append(ExemplarRecord.of_columns(arrival.columns, arrival.series))
        else:
            samples.append(Written.of_columns(arrival.columns, arrival.series))
    return sample_record.joined(samples) if samples else None, exemplar_record.joined(exemplars) if exemplars else None
