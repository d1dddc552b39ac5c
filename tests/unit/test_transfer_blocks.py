"""Blocks of Prometheus's TSDB that imports read."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import snappy

from coordinator.transfer.sample_files import Block, sources_of
from coordinator.transfer.tsdb_index import tombstones
from proto import remote_write_pb2
from shared.labels import decode
from tests.crc32c import crc32c

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is not installed")


def values_of(block: Block) -> dict[str, list[tuple[int, float]]]:
    """All samples of a block by metric name and label."""
    found: dict[str, list[tuple[int, float]]] = {}
    series = [own for _, own in block._index.series()]
    arrays = block._floats(series, block._read(series))
    for i, label_bytes in enumerate(arrays.labels):
        own = slice(int(arrays.firsts[i]), int(arrays.firsts[i] + arrays.counts[i]))
        labels = dict(decode(label_bytes))
        key = labels.pop("__name__") + "".join(f",{name}={value}" for name, value in labels.items())
        found.setdefault(key, []).extend(zip(arrays.times_ms[own].tolist(), arrays.values[own].tolist(), strict=True))
    return found


def openmetrics_text(series: dict[str, list[tuple[int, float]]]) -> str:
    lines = [
        f"# TYPE {name} gauge\n" + "".join(f'{name}{{job="a"}} {v!r} {t / 1000:.3f}\n' for t, v in pairs)
        for name, pairs in series.items()
    ]
    return "".join(lines) + "# EOF\n"


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[tuple[int, float]]]]:
    """(blocks that promtool made, what is in them)."""
    directory = tmp_path_factory.mktemp("blocks")
    random = np.random.default_rng(1)
    times = 1_700_000_000_000 + np.cumsum(random.integers(1, 40_000, 700))
    jumps = 1_700_000_000_000 + np.array([0, 1, 2, 8_194, 3_000_000, 3_000_001, 3_600_000])
    series = {
        "random": list(zip(times.tolist(), random.normal(size=700).tolist(), strict=True)),
        "steady": [(1_700_000_000_000 + 15_000 * i, float(i // 7)) for i in range(500)],
        "edges": list(
            zip(jumps.tolist(), [0.0, -0.0, 1e300, 5e-324, float("inf"), 1.0, 1.0000000000000002], strict=True)
        ),
    }
    (directory / "in.om").write_text(openmetrics_text(series))
    made = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", directory / "in.om", directory / "out"],
        capture_output=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return directory / "out", series


@needs_promtool
def test_blocks_of_prometheus_are_read_bit_for_bit(blocks: tuple[Path, dict[str, list[tuple[int, float]]]]) -> None:
    path, series = blocks
    found: dict[str, list[tuple[int, float]]] = {}
    for source in sources_of(path):
        assert isinstance(source, Block)
        for name, pairs in values_of(source).items():
            found.setdefault(name, []).extend(pairs)
    assert {name: sorted(pairs) for name, pairs in found.items()} == {
        f"{name},job=a": own for name, own in series.items()
    }


@needs_promtool
def test_damage_and_tombstones_of_a_block_are_heeded(
    blocks: tuple[Path, dict[str, list[tuple[int, float]]]], tmp_path: Path
) -> None:
    path, _ = blocks
    block = max(
        (own.parent for own in path.glob("*/index")), key=lambda own: len(values_of(Block(own)).get("steady,job=a", ()))
    )
    copy = tmp_path / "block"
    shutil.copytree(block, copy)
    whole = values_of(Block(copy))["steady,job=a"]
    (reference,) = [own.reference for _, own in Block(copy)._index.series() if b"steady" in own.labels]
    first, last = whole[3][0], whole[5][0]
    stone = b"".join(_varint(number) for number in (reference, first << 1, last << 1))
    (copy / "tombstones").write_bytes(struct.pack(">IB", 0x0130BA30, 1) + stone + _checksum(stone))
    assert values_of(Block(copy))["steady,job=a"] == [*whole[:3], *whole[6:]]
    (copy / "tombstones").write_bytes(struct.pack(">IB", 0x0130BA30, 1) + stone[:-1] + b"\x7f" + _checksum(stone))
    with pytest.raises(ValueError, match="tombstones is damaged: its checksum is another"):
        Block(copy)
    (copy / "tombstones").unlink()
    chunks = copy / "chunks" / "000001"
    data = bytearray(chunks.read_bytes())
    data[-20] ^= 1
    chunks.write_bytes(data)
    source = Block(copy)
    list(source.batches(0))
    assert source.notes == [f"{copy}: 1 chunks are damaged; their samples are missing"]
    (copy / "index").write_bytes((copy / "index").read_bytes()[:-60])
    with pytest.raises(ValueError, match=r"table of contents|symbols"):
        list(Block(copy).batches(0))


def _checksum(data: bytes) -> bytes:
    return struct.pack(">I", crc32c(data))


def test_tombstones_that_prometheus_wrote_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tombstones"
    path.write_bytes(bytes.fromhex("0130ba300122f0ceabfef962f0ceabfef9622ab08dacfef962b08dacfef962d96013a7"))
    assert tombstones(path) == {34: [(1700000003000,) * 2], 42: [(1700000007000,) * 2]}
    path.write_bytes(path.read_bytes()[:-6])
    with pytest.raises(ValueError, match="tombstones is damaged: its checksum is another"):
        tombstones(path)


@needs_promtool
def test_no_bit_of_an_index_can_be_another_without_being_noticed(blocks: tuple[Path, Any], tmp_path: Path) -> None:
    def read(block: Path) -> list[tuple[bytes, list[int]]]:
        return [(series.labels, series.chunks) for _, series in Block(block)._index.series()]

    path = tmp_path / "block"
    shutil.copytree(next(blocks[0].glob("*/index")).parent, path)
    expected, content, random = read(path), (path / "index").read_bytes(), np.random.default_rng(1)
    end, refused = Block(path).size, 0
    for at in random.integers(0, end, 300).tolist():
        damaged = bytearray(content)
        damaged[at] ^= 1 << int(random.integers(8))
        (path / "index").write_bytes(damaged)
        try:
            assert read(path) == expected  # it was between two series
        except ValueError:
            refused += 1
    assert refused > 150


def _varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


@needs_promtool
def test_the_batches_of_a_block_go_on_at_any_position(
    blocks: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.transfer.sample_files.CHUNKS_AT_ONCE", 1)
    for path in sorted(own.parent for own in blocks[0].glob("*/index")):
        whole = list(Block(path).batches(0))
        assert sum(batch.size for batch in whole) == Block(path).size
        for number, batch in enumerate(whole):
            assert [own.body for own in Block(path).batches(batch.position)] == [
                own.body for own in whole[number + 1 :]
            ]


@needs_promtool
def test_a_series_with_many_samples_in_a_block_is_sent_in_parts(
    blocks: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent(block: Block) -> list[tuple[int, int, int]]:
        """(samples, position, size) of each request."""
        requests = [
            (remote_write_pb2.WriteRequest.FromString(snappy.uncompress(batch.body)), batch)
            for batch in block.batches(0)
        ]
        return [
            (sum(len(series.samples) for series in request.timeseries), batch.position, batch.size)
            for request, batch in requests
        ]

    for path in (own.parent for own in blocks[0].glob("*/index")):
        with monkeypatch.context() as patched:
            ((total, end, _),) = sent(Block(path))
            patched.setattr("coordinator.transfer.sample_files.SERIES_CHUNKS_AT_ONCE", 1)
            chunks = [len(series.chunks) for _, series in Block(path)._index.series()]
            parts = sent(Block(path))
            assert len(parts) == 1 + sum(chunks) - len(chunks)
            assert sum(samples for samples, _, _ in parts) == total
            assert {position for _, position, _ in parts[:-1]} <= {0}, "a part of a series is no progress"
            assert parts[-1][1] == end and sum(size for _, _, size in parts) == Block(path).size
