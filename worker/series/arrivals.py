"""The frames of a write to a shard: samples and exemplars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shared.errors import Unavailable
from shared.frames import exemplars as exemplar_frames
from shared.frames import references as reference_frames
from shared.frames import samples as sample_frames
from shared.frames.exemplars import ExemplarColumns
from shared.frames.references import ReferenceColumns
from shared.frames.samples import SampleColumns
from shared.wire import Frame
from worker.series import exemplar_record, sample_record
from worker.series.exemplar_record import ExemplarRecord
from worker.series.index.index import Index
from worker.series.sample_record import Written

Columns = SampleColumns | ExemplarColumns | ReferenceColumns


@dataclass(slots=True, eq=False)
class Arrival:
    """A parsed frame. `series`: int64[runs], the series number of each run, once the index has given it. `refusal`: why
    the frame was not stored, if other frames of its commit were."""

    columns: Columns
    series: NDArray[np.int64] | None = None
    refusal: Unavailable | None = None

    def resolve(self, index: Index, series_max: int) -> None:
        """Look up the series in the index; new series get numbers below `series_max`. The caller holds the index's lock
        and registers the new series afterwards."""
        columns = self.columns
        if isinstance(columns, ReferenceColumns):
            self.series = columns.series
        else:
            self.series = index.resolve(columns.data, columns.starts, columns.ends, columns.hashes, series_max)


def parse(frame: Frame) -> Columns:
    """Parse one frame of `series.write`. Raises Internal for anything else."""
    if reference_frames.is_references(frame):
        return reference_frames.parse(frame)
    return exemplar_frames.parse(frame) if exemplar_frames.is_exemplars(frame) else sample_frames.parse(frame)


def numbered(arrivals: Sequence[Arrival]) -> list[ReferenceColumns] | None:
    """The frames if all of them name series by number and none has start timestamps; otherwise None."""
    frames = list[ReferenceColumns]()
    for arrival in arrivals:
        if not isinstance(arrival.columns, ReferenceColumns) or arrival.columns.has_starts:
            return None
        frames.append(arrival.columns)
    return frames


def accepted(arrivals: Sequence[Arrival], refusal: Unavailable) -> Sequence[Arrival]:
    """The resolved arrivals whose series all have numbers. Sets `refusal` on the others, or raises it if none is
    left."""
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
