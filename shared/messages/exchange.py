"""Encodes values that workers send to the coordinator: a small `Shape`, and arrays as raw frames without conversion.

Presence and dropped names travel as bits; a matrix without gaps sends none. Decoded arrays are views of the received
frames. Histograms are one more frame (`shared.histograms.frames`). A value may also travel as the text that the
response will contain (`shared.promql.rendering`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from shared.hashing import hash64
from shared.histograms import frames as histogram_frames
from shared.histograms import references
from shared.histograms.batch import HistogramBatch
from shared.labels import LabelFrame, Symbols, concat, distinct
from shared.messages.sub_queries import Remark, Shape
from shared.promql.engine.partial import Partial
from shared.promql.model import Annotation, Annotations, Bool, Float, Int, Matrix, RangeVector, Samples
from shared.promql.model import cells as cells_of_series
from shared.promql.rendering.series import Text
from shared.wire import Frame


@dataclass(frozen=True, slots=True)
class Rendered:
    """A value as text of the response, with its series in the order of their label sets. `cells`: how many numbers the
    value held."""

    texts: list[Text]
    cells: int


Shipped = Matrix | RangeVector | Partial | Rendered
Vector = TypeVar("Vector", Matrix, RangeVector, Partial, Matrix | RangeVector, Matrix | RangeVector | Partial)


def encode(value: Shipped) -> tuple[Shape, list[Frame]]:
    """(the value's shape, its frames). Only the histograms that present values refer to are sent."""
    if isinstance(value, Rendered):
        return _encode_text(value)
    value = without_unused(value)
    histograms = value.samples.histograms if isinstance(value, RangeVector) else value.histograms
    shape, frames = _encode_numbers(value)
    if histograms is None:
        return shape, frames
    shape = msgspec.structs.replace(shape, frames=shape.frames + 1, histograms=True)
    return shape, [*frames, histogram_frames.encode(histograms)]


def without_unused(value: Vector) -> Vector:
    """The value with only the histograms that present values refer to, each once."""
    if isinstance(value, RangeVector):
        samples = value.samples
        if samples.histograms is None:
            return value
        values, histograms = references.used_only(samples.values, samples.histograms)
        return replace(value, samples=replace(samples, values=values, histograms=histograms))
    if value.histograms is None:
        return value
    if isinstance(value, Matrix):
        # Absent values are arbitrary, and may look like references to rows that do not exist.
        values, histograms = references.used_only(np.where(value.present, value.values, 0.0), value.histograms)
        return replace(value, values=values, histograms=histograms)
    planes = np.stack(list(value.planes.values()))
    planes[references.is_reference(planes) & ~value.present] = 0.0  # all other absent values are neutral elements
    planes, histograms = references.used_only(planes, value.histograms)
    return replace(value, planes=dict(zip(value.planes, planes, strict=True)), histograms=histograms)


def _encode_numbers(value: Matrix | RangeVector | Partial) -> tuple[Shape, list[Frame]]:
    if isinstance(value, Matrix):
        return _encode_matrix(value)
    if isinstance(value, RangeVector):
        return _encode_range(value)
    assert all(plane.shape == value.present.shape for plane in value.planes.values())
    assert value.present.shape[0] == value.groups.size == len(value.drop_name)
    frames = [*value.groups.to_frames(), *(_raw(plane) for plane in value.planes.values())]
    frames += [_bits(value.present), _bits(value.drop_name)]
    return Shape("partial", value.present.shape[1], len(frames), tuple(value.planes)), frames


def _encode_matrix(value: Matrix) -> tuple[Shape, list[Frame]]:
    assert value.values.shape == value.present.shape
    assert value.values.shape[0] == value.labels.size == len(value.drop_name)
    frames = [*value.labels.to_frames(), _raw(value.values), _bits(value.present), _bits(value.drop_name)]
    return Shape("matrix", value.values.shape[1], len(frames)), frames


def _encode_range(value: RangeVector) -> tuple[Shape, list[Frame]]:
    samples = value.samples
    starts = samples.start_timestamps_ms
    assert len(samples.offsets) == value.labels.size + 1 == len(value.drop_name) + 1
    assert samples.offsets[0] == 0 and samples.offsets[-1] == len(samples.timestamps_ms) == len(samples.values)
    assert starts is None or len(starts) == len(samples.values)
    frames = [
        *value.labels.to_frames(),
        _raw(samples.offsets),
        _raw(samples.timestamps_ms),
        _raw(samples.values),
        b"" if starts is None else _raw(starts),
        _bits(value.drop_name),
    ]
    return Shape("range", 0, len(frames)), frames


def _encode_text(value: Rendered) -> tuple[Shape, list[Frame]]:
    frames = [_stacked([text.ends for text in value.texts]), _stacked([text.label_ends for text in value.texts])]
    frames += [_raw(text.data) for text in value.texts]
    series = tuple(text.series for text in value.texts)
    return Shape("text", 0, len(frames), series=series, cells=value.cells), frames


def _decode_text(shape: Shape, frames: Sequence[Frame]) -> Rendered:
    assert len(frames) == 2 + len(shape.series)
    ends, label_ends = (np.require(_array(frame, np.int64), requirements="A") for frame in frames[:2])
    texts, first = [], 0
    for frame, series in zip(frames[2:], shape.series, strict=True):
        last = first + series
        texts.append(Text(_array(frame, np.uint8), ends[first:last], label_ends[first:last]))
        first = last
    assert first == len(ends) == len(label_ends), "every series has an end in its text"
    return Rendered(texts, shape.cells)


def decode(shape: Shape, frames: Sequence[Frame], symbols: Symbols, labels: LabelFrame | None = None) -> Shipped:
    """Inverse of `encode`. Label codes are codes of `symbols`. `labels`: those of the frames, if already decoded."""
    assert len(frames) == shape.frames, f"{shape.kind} announces {shape.frames} frames and has {len(frames)}"
    if shape.kind == "text":
        return _decode_text(shape, frames)
    frames = frames[:-1] if shape.hashed else frames
    histograms = None
    if shape.histograms:
        frames, histograms = frames[:-1], histogram_frames.decode(frames[-1])
    if labels is None:
        labels = LabelFrame.from_frames([bytes(frames[0]), memoryview(frames[1])], symbols)
    series = labels.size
    drop_name = _from_bits(frames[-1], (series,))
    if shape.kind == "range":
        starts = _array(frames[5], np.int64) if len(frames[5]) else None
        samples = Samples(
            _array(frames[2], np.int64), _array(frames[3], np.int64), _array(frames[4], np.float64), starts, histograms
        )
        _assert_rows(samples.values, histograms)
        assert len(samples.offsets) == series + 1
        assert samples.offsets[-1] == len(samples.timestamps_ms) == len(samples.values)
        return RangeVector(labels, samples, drop_name)
    cells = (series, shape.steps)
    present = _from_bits(frames[-2], cells)
    if shape.kind == "matrix":
        values = _array(frames[2], np.float64).reshape(cells)
        _assert_rows(values, histograms)
        return Matrix(labels, values, present, drop_name, histograms)
    assert len(frames) == 2 + len(shape.planes) + 2, "labels, planes, presence and dropped names"
    planes = {
        name: _array(frame, np.float64).reshape(cells) for name, frame in zip(shape.planes, frames[2:], strict=False)
    }
    for plane in planes.values():
        _assert_rows(plane, histograms)
    return Partial(labels, planes, present, drop_name, histograms)


def cells(value: Shipped) -> int:
    """How many numbers a value holds: one for each sample, and one more for each bucket of a histogram."""
    return value.cells if isinstance(value, Rendered | Partial) else cells_of_series(value)


def shown(value: Matrix | RangeVector) -> int:
    """How many numbers a response with this value has: the buckets of a histogram count each time it is shown."""
    samples = value.samples if isinstance(value, RangeVector) else value
    if samples.histograms is None:
        return samples.values.size
    values = value.values[value.present] if isinstance(value, Matrix) else value.samples.values
    rows = references.rows_of(values[references.is_reference(values)])
    return len(values) + int(np.diff(samples.histograms.columns.start)[rows].sum())


def _assert_rows(values: Float, histograms: HistogramBatch | None) -> None:
    """Kernels read the rows that values refer to without a bounds check."""
    if histograms is not None:
        rows = references.rows_of(values[references.is_reference(values)])
        assert rows.max(initial=-1) < len(histograms), "a value refers to a histogram that was not sent"


def label_hashes(labels: LabelFrame) -> NDArray[np.uint64]:
    """uint64[series]: equal label sets have equal hashes, in every process."""
    hashes = np.zeros(labels.size, dtype=np.uint64)
    for name, column in labels.columns.items():
        codes, code_indices = distinct(column)
        pair_hashes = [hash64(f"{name}\xff{text}".encode()) if text else 0 for text in labels.symbols.texts(codes)]
        hashes += np.array(pair_hashes, dtype=np.uint64)[code_indices]
    return hashes


def with_hashes(shape: Shape, frames: list[Frame], hashes: NDArray[np.uint64]) -> tuple[Shape, list[Frame]]:
    """An encoded value with `label_hashes` as its last frame."""
    assert not shape.hashed and len(frames) == shape.frames
    return msgspec.structs.replace(shape, frames=shape.frames + 1, hashed=True), [*frames, hashes.tobytes()]


def hashes_of(shape: Shape, frames: Sequence[Frame]) -> NDArray[np.uint64]:
    """The hashes that were sent with a value, uint64[series]; empty if none were."""
    return np.frombuffer(frames[-1], dtype=np.uint64) if shape.hashed else np.zeros(0, dtype=np.uint64)


def joined(values: Sequence[Matrix | RangeVector], labels: LabelFrame | None = None) -> Matrix | RangeVector:
    """The values from several workers as one. No series is in two of them, and all use one symbol table. `labels`:
    those of all values, if already joined."""
    if len(values) == 1:
        return values[0]
    if labels is None:
        labels = concat([value.labels for value in values])
    drop_name = np.concatenate([value.drop_name for value in values])
    matrices = [value for value in values if isinstance(value, Matrix)]
    if matrices:
        assert len(matrices) == len(values)
        present = np.concatenate([m.present for m in matrices])
        parts, histograms = references.stacked([(m.values, m.histograms) for m in matrices])
        return Matrix(labels, np.concatenate(parts), present, drop_name, histograms)
    return RangeVector(labels, joined_samples([v.samples for v in values if isinstance(v, RangeVector)]), drop_name)


def joined_samples(parts: Sequence[Samples]) -> Samples:
    """The samples of all parts, one part after another."""
    offsets, total = [np.zeros(1, dtype=np.int64)], 0
    for part in parts:
        offsets.append(part.offsets[1:] + total)
        total += len(part.values)
    starts = None
    if any(part.start_timestamps_ms is not None for part in parts):
        starts = np.concatenate(
            [
                np.zeros(len(part.values), dtype=np.int64)
                if part.start_timestamps_ms is None
                else part.start_timestamps_ms
                for part in parts
            ]
        )
    times = np.concatenate([np.zeros(0, dtype=np.int64), *(part.timestamps_ms for part in parts)])
    values, histograms = references.stacked([(part.values, part.histograms) for part in parts])
    return Samples(np.concatenate(offsets), times, np.concatenate([np.zeros(0), *values]), starts, histograms)


def remarks(annotations: Annotations) -> tuple[Remark, ...]:
    """The annotations as remarks."""
    return tuple(Remark(a.level, a.text, a.offset) for a in annotations.items.values())


def add_remarks(annotations: Annotations, sub_query_remarks: Sequence[Remark], start: int) -> None:
    """Add a sub-query's remarks. `start`: the offset of its text in the query's text."""
    for remark in sub_query_remarks:
        offset = None if remark.offset is None else remark.offset + start
        annotations.add(Annotation(remark.level, remark.text, offset))


def _raw(array: Float | Int | NDArray[np.uint8]) -> Frame:
    assert array.dtype.str in ("<f8", "<i8", "|u1"), "a reader takes the types of arrays as given"
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).data if flat.size else b""


def _stacked(arrays: Sequence[Int]) -> Frame:
    return _raw(np.concatenate(arrays)) if arrays else b""


def _array(frame: Frame, dtype: type) -> NDArray:
    return np.frombuffer(frame, dtype=dtype)


def _bits(mask: Bool) -> Frame:
    assert mask.dtype == np.bool_
    return b"" if mask.all() else np.packbits(mask).data


def _from_bits(frame: Frame, shape: tuple[int, ...]) -> Bool:
    if not len(frame):
        return np.ones(shape, dtype=np.bool_)
    cells = prod(shape)
    assert len(frame) == (cells + 7) // 8, "bits that are missing would be read as zeros"
    return np.unpackbits(np.frombuffer(frame, dtype=np.uint8), count=cells).view(np.bool_).reshape(shape)
