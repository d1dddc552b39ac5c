"""Records of a long scan are written in parts of which a client that takes none holds only one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from coordinator.api.log import answers
from coordinator.api.log.scan import _Arrow, _Json, _parts, _Protobuf
from coordinator.http.streaming import WRITE_BYTES
from coordinator.log.reads import PAGE_RECORDS, KeySelection
from shared.messages.log_pages import Records

SELECTION = KeySelection(key=b"key")
BODIES = {
    "JSON": lambda: _Json(SELECTION, answers.form({})),
    "protobuf": _Protobuf,
    "Arrow": lambda: _Arrow(SELECTION),
}


@pytest.mark.parametrize("form", BODIES)
@pytest.mark.parametrize("size", [0, 100, 5000])
def test_each_part_is_one_write_and_not_a_small_one(form: str, size: int) -> None:
    sequences = np.arange(PAGE_RECORDS, dtype=np.uint64)
    records = Records.of(sequences, [b"v" * size] * PAGE_RECORDS, times=np.full(PAGE_RECORDS, 1 << 40, np.int64))
    body: Any = BODIES[form]()
    body.start()
    parts = list(_parts(records, body))
    assert parts[0][0] == 0 and parts[-1][1] == PAGE_RECORDS
    assert all(end == begin for (_, end), (begin, _) in pairwise(parts))
    written = [len(b"".join(body.page(records.cut(low, high)))) for low, high in parts]
    assert max(written) <= WRITE_BYTES
    assert all(each > WRITE_BYTES // 4 for each in written[:-1])
