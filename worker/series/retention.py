"""Which blocks are past their time, or past the space there is for them."""

from __future__ import annotations

from collections.abc import Sequence

from worker.series.blocks import Block


def expired(blocks: Sequence[Block], now_ms: int, age_ms: int, bytes_max: int) -> list[Block]:
    """Blocks whose newest sample is older than `age_ms`, and the oldest ones while all are larger than `bytes_max`
    together; 0 sets no bound."""
    dropped = []
    left = sum(block.row.size_bytes for block in blocks)
    for block in sorted(blocks, key=lambda block: block.row.latest_ms):
        if (age_ms and block.row.latest_ms < now_ms - age_ms) or (bytes_max and left > bytes_max):
            dropped.append(block)
            left -= block.row.size_bytes
    return dropped
