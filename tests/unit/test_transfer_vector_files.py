"""Files of vectors that are not right: the import says what is wrong and where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coordinator import cli
from coordinator.transfer.arrow import library
from coordinator.transfer.vector_files import read, vectors_of_batch, vectors_of_lines

NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"attributes": [{"n": 1}]}, "'a' has the `attributes` {'n': 1}; they must be the text of a JSON object"),
        ({"attributes": ["[1]"]}, "'a' has the `attributes` '[1]'; they must be the text of a JSON object"),
        ({"attributes": ["{"]}, "'a' has the `attributes` '{'; they must be the text of a JSON object"),
        ({"vector": [5]}, "'a' has the `vector` 5; it must be a list of numbers"),
        ({"vector": [None]}, "'a' has the `vector` None; it must be a list of numbers"),
        ({"id": [7]}, "7 has an id that is no text"),
    ],
)
def test_a_column_of_vectors_that_is_not_right_is_named(columns: dict[str, list[Any]], why: str) -> None:
    batch = library().RecordBatch.from_pydict({"id": ["a"], "vector": [[1.0]], **columns})
    with pytest.raises(ValueError) as error:
        list(vectors_of_batch(batch))
    assert str(error.value) == f"the vector {why}"


def test_vectors_without_attributes_are_read() -> None:
    batch = library().RecordBatch.from_pydict({"id": ["a", "b"], "vector": [[1.0], [2.0]], "attributes": [None, ""]})
    assert [vector["attributes"] for vector in vectors_of_batch(batch)] == [{"vector": [1.0]}, {"vector": [2.0]}]


@pytest.mark.parametrize("attributes", ['{"vector": 5}', '{"vector": "[1]"}', '{"vector": null}', "{}"])
def test_a_line_whose_vector_is_no_list_is_named(attributes: str, tmp_path: Path, capfd: Any) -> None:
    lines = ['{"id": "a", "attributes": {"vector": [1]}}', f'{{"id": "b", "attributes": {attributes}}}']
    with pytest.raises(ValueError, match=r"line 2 is no vector: it has the `vector` .*; it must be a list of numbers"):
        list(vectors_of_lines([line.encode() for line in lines]))
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(lines))
    assert cli.main(["import", "vectors", str(path), "--url", NOWHERE]) == 1
    assert "line 2 is no vector" in capfd.readouterr().err


def test_a_file_that_is_no_matrix_of_numpy_is_named(tmp_path: Path) -> None:
    empty, several = tmp_path / "empty.npy", tmp_path / "several.npz"
    empty.touch()
    np.savez(several, a=np.ones((1, 1)))
    for path in (empty, several):
        with pytest.raises(ValueError, match=f"{path} is no matrix of numbers that numpy has saved"):
            list(read(path, "npy"))
