"""Snapshots of a worker's index of one collection: the index, the attributes' columns, and the list of its rows.

A snapshot only saves the time to build the index: the store alone decides which vectors exist, and with what content.
The list names each row's id and the version of the vector that was indexed; a row counts only if the store still has
that version, which no other vector ever gets (`stored_rows`). The index and the columns are written and fsynced first.
Then the list, which contains all checksums, is replaced atomically: a crash at any point leaves the last complete
snapshot or one that fails a checksum, never a wrong one. Everything is verified before it is used; damage is logged,
and the index is built anew.

A snapshot is a place of objects, whose name is the number of its lowest shard. If shards have moved between workers
since it was written, a worker uses the snapshot that has the first of its shards to be loaded, and indexes the other
vectors from the stores. The object `shards` names the shards of a snapshot, and for each the highest version that the
snapshot may name. If that is above the highest version that a shard's store has ever given, the snapshot belongs to
another store, and is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from shared.messages.vectors import Collection, Floats
from shared.telemetry import event
from worker.storage.faces import Objects, ObjectState
from worker.vectors import saved_vectors
from worker.vectors.attributes import Attributes
from worker.vectors.candidate_index import CandidateIndex, new_index
from worker.vectors.change_log import Position
from worker.vectors.recall_curve import RecallCurve
from worker.vectors.saved_vectors import Segment
from worker.vectors.similarity import Rows
from worker.vectors.table import TableView

FORMAT = 4
READABLE_FORMATS = (1, 2, 3, FORMAT)
"""Format 2 has arrays in the attributes' columns (`attribute_column.ColumnState`); format 1 is the same without. Format
3 has inverted lists, which earlier releases must not take for a graph; graphs are as before. Format 4 has the vectors
too (`saved_vectors`)."""
WHOLE_FORMAT_MIN = 3
"""Indexes of earlier formats may lack rows that were appended while others were indexed: the files are undamaged, but
not used."""
READ_BYTES = 4 << 20
ROWS, SHARDS = "rows", "shards"
INDEX, ATTRIBUTES = ".index", ".attributes"
"""Suffixes of the objects of the index and of the attributes' columns; the snapshot's number precedes them."""
_OWN_SUFFIXES = (INDEX, ATTRIBUTES, saved_vectors.SUFFIX)


class _List(msgspec.Struct):
    """The list of rows. `joined` and `lengths`: the rows' ids (`pack_blobs`); `versions`: uint64[n] as bytes;
    `highest`: shard → the highest version it had given; `expansions`, `recalls`, `queries`: see `RecallCurve`; `shards`
    uint16[n] and `norms` float32[n] as bytes, `segments`, `positions` and `latest`: see `IndexSnapshot`."""

    format: int
    collection: Collection
    index_file: str
    index_checksum: int
    attributes_checksum: int
    expansion: int
    joined: bytes
    lengths: bytes
    versions: bytes
    highest: dict[int, int]
    expansions: tuple[int, ...] = ()
    recalls: tuple[float, ...] = ()
    queries: int = 0
    shards: bytes = b""
    norms: bytes = b""
    segments: tuple[Segment, ...] = ()
    positions: dict[int, tuple[int, int]] = {}
    latest: dict[int, tuple[int, int]] = {}

    def curve(self) -> RecallCurve | None:
        """The curve; None if none was measured, or if the snapshot is of a release without curves."""
        return RecallCurve(self.expansions, self.recalls, self.queries) if self.expansions else None


class _Shards(msgspec.Struct):
    """The object `shards`. `highest`: shard → the highest version it had given; `checksum`: of the encoding with an
    empty checksum."""

    highest: dict[int, int]
    checksum: str = ""

    def encode(self) -> bytes:
        plain = msgspec.json.encode(_Shards(self.highest))
        return msgspec.json.encode(_Shards(self.highest, xxhash.xxh3_64_hexdigest(plain)))


@dataclass(slots=True)
class IndexSnapshot:
    """The rows 0 … n − 1 of `index`: their ids (`joined` and `lengths`, see `pack_blobs`; empty for a dead row), and
    `versions` uint64[n]. `curve`: as measured, else None. `highest`: shard → the highest version given, for each shard
    of the snapshot.

    `positions`: shard → the position in its changes up to which the snapshot has all of them; without the shards for
    which it is not known. `latest`: for the same shards, the position of the latest change at that time. If there are
    any, `saved` has the vectors in `segments`, and `shards` uint16[n] and `norms` float32[n] are those of the rows;
    otherwise these are empty."""

    index: CandidateIndex
    attributes: Attributes
    curve: RecallCurve | None
    joined: bytes
    lengths: bytes
    versions: NDArray[np.uint64]
    highest: Mapping[int, int]
    positions: Mapping[int, Position]
    latest: Mapping[int, Position]
    saved: Objects
    segments: tuple[Segment, ...]
    shards: NDArray[np.uint16]
    norms: Floats

    def rows_of(self, shard: int) -> Rows:
        """The rows of the vectors that a shard had: int64[n]."""
        return np.flatnonzero((self.shards == shard) & (np.frombuffer(self.lengths, np.uint32) > 0))


@dataclass(frozen=True, slots=True)
class Saving:
    """The content of a new snapshot: the indexed rows of `view`, and `curve` as measured, else None. `highest`: shard →
    the highest version given. `positions`: see `IndexSnapshot`; the vectors are only written if there are any.
    `latest`: shard → the position of its latest change, for the shards of `positions`. `earlier`: the segments with the
    first rows of this table in its last snapshot."""

    collection: Collection
    view: TableView
    highest: Mapping[int, int]
    curve: RecallCurve | None = None
    positions: Mapping[int, Position] = field(default_factory=dict)
    latest: Mapping[int, Position] = field(default_factory=dict)
    earlier: Sequence[Segment] = ()


def write(snapshots: Objects, saving: Saving) -> tuple[Segment, ...]:
    """Write a snapshot. It is durable when this returns, and older snapshots of its shards are removed. Returns its
    segments. Raises OSError, and then leaves nothing that takes room."""
    view = saving.view
    assert saving.highest, "a snapshot has the vectors of one shard or more"
    assert view.indexed <= len(view.ids) and view.indexed <= len(view.versions) and view.versions.dtype == np.uint64
    assert saving.latest.keys() == saving.positions.keys()
    lowest = str(min(saving.highest))
    target = snapshots.within(lowest)
    target.prepare()
    older = [entry.name.partition(".")[0] for entry in target.list()]
    number = max((int(stem) for stem in older if stem.isdigit()), default=0) + 1
    names = [f"{number}{suffix}" for suffix in _OWN_SUFFIXES]
    checksum = b""
    try:
        content = _write_objects(target, saving, *names)
        body = msgspec.msgpack.encode(content)
        checksum = xxhash.xxh3_64_digest(body)
        target.replace(SHARDS, _Shards(dict(saving.highest)).encode())
        target.replace(ROWS, checksum + body)
    except BaseException:
        _remove_unless_named(target, names, checksum)
        raise
    used_names = {ROWS, SHARDS, *names[:2], *(segment.name for segment in content.segments)}
    for entry in target.list():
        is_own = entry.name.endswith(_OWN_SUFFIXES) or entry.state is ObjectState.DRAFT
        if entry.name not in used_names and is_own:
            target.delete(entry.name)
    _remove_others(snapshots, lowest, saving.highest)
    return content.segments


def _write_objects(target: Objects, saving: Saving, index: str, attributes: str, segment: str) -> _List:
    """Write the objects with these names. Returns the list of rows, which is not written yet."""
    view, curve = saving.view, saving.curve
    target.put_by_path(index, view.index.save)
    columns = view.attributes.save(view.indexed)
    target.put(attributes, columns)
    rows_with_vectors = view.indexed if saving.positions else 0
    segments: tuple[Segment, ...] = ()
    if saving.positions:
        segments = saved_vectors.write(target, segment, view.vectors[:rows_with_vectors], saving.earlier)
    # A dead row is saved without its id, by which it would be found again.
    joined, lengths = view.ids.packed(view.alive[: view.indexed])
    assert len(lengths) == 4 * view.indexed
    return _List(
        FORMAT,
        saving.collection,
        index,
        _checksum(target, index),
        xxhash.xxh3_64_intdigest(columns),
        0,
        joined,
        lengths,
        view.versions[: view.indexed].tobytes(),
        dict(saving.highest),
        *((curve.expansions, curve.recalls, curve.queries) if curve is not None else ((), (), 0)),
        shards=view.shards[:rows_with_vectors].tobytes(),
        norms=view.norms[:rows_with_vectors].tobytes(),
        segments=segments,
        positions=_numbers(saving.positions),
        latest=_numbers(saving.latest),
    )


def _remove_others(snapshots: Objects, own: str, highest: Mapping[int, int]) -> None:
    """Remove the snapshots beside `own` that have shards of `highest`, or that are named like one."""
    for entry in snapshots.list():
        other = snapshots.within(entry.name)
        if entry.name != own and (entry.name in map(str, highest) or _usable_shards(other).keys() & highest.keys()):
            other.remove()


def _numbers(positions: Mapping[int, Position]) -> dict[int, tuple[int, int]]:
    return {shard: (position.version, position.deletions) for shard, position in positions.items()}


def _remove_unless_named(target: Objects, names: Sequence[str], checksum: bytes) -> None:
    """Remove the objects of a snapshot that could not be finished: otherwise each attempt on a full disk would leave
    more. They stay if the list of rows, which has this checksum, names them. Raises nothing."""
    with suppress(OSError):
        if not checksum or not target.exists(ROWS) or target.read(ROWS, 0, len(checksum)) != checksum:
            for name in names:
                target.delete(name)


def _attributes_name(index_name: str) -> str:
    return index_name.removesuffix(INDEX) + ATTRIBUTES


def shards_of(saved: Objects) -> Mapping[int, int]:
    """The shards of a snapshot: shard → the highest version given. Raises OSError, and ValueError if the object is
    damaged."""
    content = saved.get(SHARDS)
    try:
        shards = msgspec.json.decode(content, type=_Shards)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"{SHARDS} cannot be read: {error}") from error
    if shards.encode() != content:
        raise ValueError(f"{SHARDS} fails its checksum")
    return shards.highest


def _usable_shards(saved: Objects) -> Mapping[int, int]:
    """As `shards_of`; empty if the object does not exist or cannot be read. In the latter case the snapshot is
    removed."""
    try:
        return shards_of(saved)
    except FileNotFoundError:
        return {}  # the first snapshot in this place is being written
    except (OSError, ValueError) as error:
        event(logging.WARNING, "vector index snapshot not usable, building anew", path=saved.location(), why=error)
        saved.remove()
        return {}


def _all_in(snapshots: Objects) -> Iterator[tuple[Objects, Mapping[int, int]]]:
    """Each snapshot of a collection with its shards, as `_usable_shards`."""
    for entry in snapshots.list():
        saved = snapshots.within(entry.name)
        yield saved, _usable_shards(saved)


def discard_newer(snapshots: Objects, shard: int, highest: int) -> None:
    """Remove snapshots that name versions above `highest`, the highest version this shard's store has given: the store
    is older than these snapshots, and would give the same versions to other vectors."""
    for saved, shards in _all_in(snapshots):
        if shards.get(shard, 0) > highest:
            why = f"it names version {shards[shard]} of shard {shard}, whose store has given {highest} at most"
            event(
                logging.WARNING,
                "vector index snapshot is of another store, building anew",
                path=saved.location(),
                why=why,
            )
            saved.remove()


def read(snapshots: Objects, shard: int, collection: Collection) -> IndexSnapshot | None:
    """The first usable snapshot that has `shard`; None if there is none, and then the index is built from the store."""
    for saved, shards in _all_in(snapshots):
        if shard in shards and saved.exists(ROWS):
            try:
                return _read(saved, collection)
            except (OSError, ValueError, RuntimeError) as error:
                path = saved.location()
                event(logging.WARNING, "vector index snapshot not usable, building anew", path=path, why=error)
    return None


def _read(saved: Objects, collection: Collection) -> IndexSnapshot:
    """Raises OSError, ValueError, RuntimeError if the snapshot is damaged or of another description of the
    collection."""
    content = verified(saved)
    if content.format < WHOLE_FORMAT_MIN:
        raise ValueError(f"it is of format {content.format}, of an earlier release, whose indexes may lack vectors")
    if content.collection != collection:
        raise ValueError(f"it is of {content.collection}")
    versions = np.frombuffer(content.versions, dtype=np.uint64)
    rows = len(versions)
    attributes = Attributes.restore(_attributes_bytes(saved, content), rows)
    index = new_index(collection)
    saved.get_by_path(content.index_file, lambda path: index.load(path, rows))
    return IndexSnapshot(
        index,
        attributes,
        content.curve(),
        content.joined,
        content.lengths,
        versions,
        content.highest,
        {shard: Position(*numbers) for shard, numbers in content.positions.items()},
        {shard: Position(*numbers) for shard, numbers in content.latest.items()},
        saved,
        content.segments,
        np.frombuffer(content.shards, np.uint16),
        np.frombuffer(content.norms, np.float32),
    )


def verified(saved: Objects) -> _List:
    """The list of a snapshot's rows. Raises OSError, and ValueError if the list or an object that it names is
    damaged."""
    content = _read_list(saved)
    name = content.index_file
    if "/" in name or _checksum(saved, name) != content.index_checksum:
        raise ValueError(f"{name} fails its checksum")
    _attributes_bytes(saved, content)
    return content


def verify_vectors(saved: Objects, content: _List) -> None:
    """Read the vectors of a snapshot whose list is `content`. Raises OSError, and ValueError if they are damaged."""
    for segment in content.segments:
        if _checksum(saved, segment.name) != segment.checksum:
            raise ValueError(f"{segment.name} fails its checksum")


def object_names(saved: Objects) -> set[str]:
    """The names of the objects of a snapshot, all of which exist. Raises OSError, and ValueError if its lists are
    damaged or an object is missing."""
    content = _read_list(saved)
    names = {ROWS, SHARDS, content.index_file, _attributes_name(content.index_file)}
    names.update(segment.name for segment in content.segments)
    missing = [name for name in sorted(names) if not saved.exists(name)]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    return names


def _read_list(saved: Objects) -> _List:
    data = saved.get(ROWS)
    if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
        raise ValueError("the list of rows fails its checksum")
    try:
        content = msgspec.msgpack.decode(data[8:], type=_List)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"the list of rows is of another format: {error}") from error
    rows, rest = divmod(len(content.lengths), 4)
    if content.format not in READABLE_FORMATS or rest or len(content.versions) != 8 * rows:
        raise ValueError(f"it is of format {content.format}, with {len(content.versions)} bytes of versions")
    if len(content.expansions) != len(content.recalls) or list(content.expansions) != sorted(set(content.expansions)):
        raise ValueError(f"its expansions are {content.expansions} with {len(content.recalls)} recalls")
    if sum(np.frombuffer(content.lengths, np.uint32).tolist()) != len(content.joined):
        raise ValueError(f"its ids have {len(content.joined)} bytes, but their lengths add up to another number")
    ends = [segment.end for segment in content.segments]
    expected = (2 * rows, 4 * rows, rows) if content.positions else (0, 0, 0)
    is_ascending = ends == sorted(set(ends)) and min(ends, default=1) > 0
    if (len(content.shards), len(content.norms), ends[-1] if ends else 0) != expected or not is_ascending:
        raise ValueError(f"it has vectors up to the rows {ends}, and {len(content.norms)} bytes of their lengths")
    for segment in content.segments:
        if "/" in segment.name:
            raise ValueError(f"{segment.name!r} is no name of a segment")
    if content.highest.keys() != shards_of(saved).keys():
        raise ValueError(f"its rows are of the shards {sorted(content.highest)}, but {SHARDS} names others")
    return content


def _attributes_bytes(saved: Objects, content: _List) -> bytes:
    name = _attributes_name(content.index_file)
    attributes = saved.get(name)
    if xxhash.xxh3_64_intdigest(attributes) != content.attributes_checksum:
        raise ValueError(f"{name} fails its checksum")
    return attributes


def _checksum(saved: Objects, name: str) -> int:
    digest = xxhash.xxh3_64()
    at = 0
    while chunk := saved.read(name, at, READ_BYTES):
        digest.update(chunk)
        at += len(chunk)
    return digest.intdigest()
