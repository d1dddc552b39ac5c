"""CRC-32C (Castagnoli's polynomial; RFC 3720, section 12.1), eight bytes at a time. It is the checksum of remote read's
frames and of Prometheus's blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shared.kernels import inlined, types
from shared.xxh64 import load64

TABLES = types.Array(types.uint32, 2, "C", readonly=True)
_POLYNOMIAL = np.uint32(0x82F63B78)  # its bits reversed
_ALL, _BYTE = np.uint64(0xFFFFFFFF), np.uint64(0xFF)


def _tables() -> NDArray[np.uint32]:
    """uint32[8, 256]: tables[k, b] is the checksum of byte b followed by k zero bytes (M. Kounavis and F. Berry, "A
    Systematic Approach to Building High Performance Software-Based CRC Generators", 2005)."""
    tables = np.zeros((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = np.where(tables[0] & 1, tables[0] >> 1 ^ _POLYNOMIAL, tables[0] >> 1)
    for zeros in range(1, 8):
        before = tables[zeros - 1]
        tables[zeros] = before >> 8 ^ tables[0][before & 0xFF]
    tables.flags.writeable = False
    return tables


CRC_TABLES = _tables()


@inlined(allocates=False)
def crc32c(tables: Any, data: Any, begin: Any, end: Any) -> Any:
    """The checksum of data[begin:end], as a uint64."""
    crc = _ALL
    at = begin
    while at + 8 <= end:
        word = load64(data, at) ^ crc
        crc = np.uint64(0)
        for i in range(8):
            crc ^= np.uint64(tables[7 - i, (word >> np.uint64(8 * i)) & _BYTE])
        at += 8
    while at < end:
        crc = crc >> np.uint64(8) ^ np.uint64(tables[0, (crc ^ np.uint64(data[at])) & _BYTE])
        at += 1
    return crc ^ _ALL
