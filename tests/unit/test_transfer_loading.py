"""What `triptych import` needs is loaded by itself: each kind of file is read in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.transfer.arrow import ArrowStream, ParquetFile
from tests.unit.test_transfer_json import slice_of

READ = """
import sys
from pathlib import Path
from coordinator.transfer.sample_files import sources_of
(source,) = sources_of(Path(sys.argv[1]))
print(len(list(source.batches(0))))
"""


@pytest.mark.parametrize(("kind", "suffix"), [(ArrowStream, "arrow"), (ParquetFile, "parquet")])
def test_a_file_of_arrow_is_read_in_a_fresh_interpreter(kind: type, suffix: str, tmp_path: Path) -> None:
    writer = kind()
    path = tmp_path / f"up.{suffix}"
    path.write_bytes(b"".join([writer.head, *map(bytes, writer.chunks(slice_of({"up": [(1, 1.0)]}))), writer.tail]))
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
