"""Lays out the object code that LLVM generates for a kernel in the form in which processes load it.

Only the output of numba on x86-64 is supported: ELF code that refers to everything by its full address ("large code
model"; https://gitlab.com/x86-psABIs/x86-64-ABI). C++ exception tables are left out: no code throws.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from shared.kernels.machine_code import ALIGNMENT, WORD_BYTES, MachineCode

_SECTIONS_AT, _SECTION_COUNT_AT = 40, 60
_SECTION, _SYMBOL, _RELOCATION = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_PROGRAM, _SYMBOLS, _RELOCATIONS, _ZEROS = 1, 2, 4, 8
_IS_LOADED = 2
_UNDEFINED, _COMMON = 0, 0xFFF2
_WHOLE_ADDRESS = 1


class UnknownObjectCode(ValueError):
    """Object code of an unsupported kind."""


@dataclass(frozen=True, slots=True)
class _Section:
    name: str
    kind: int
    flags: int
    start: int
    size: int
    link: int
    info: int
    content: bytes


@dataclass(frozen=True, slots=True)
class _Symbol:
    name: str
    section: int
    value: int
    size: int


def laid_out(object_code: bytes, symbol: str, environments: Sequence[tuple[str, str, list[Any]]]) -> MachineCode:
    """`symbol`: the function in the object code that Python or C calls. `environments`: (the symbol of the word that
    has the environment's address, its module, its constants) of each. Raises UnknownObjectCode."""
    return _Object(object_code).laid_out(symbol, environments)


class _Object:
    def __init__(self, data: bytes) -> None:
        if data[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", data, 18) != (62,):
            raise UnknownObjectCode("kernels are compiled to ELF for x86-64 only")
        self._data = data
        begin, (count, names) = struct.unpack_from("<Q", data, _SECTIONS_AT)[0], struct.unpack_from("<HH", data, 60)
        headers = [_SECTION.unpack_from(data, begin + i * _SECTION.size) for i in range(count)]
        self._sections = [
            _Section(
                self._text(headers[names][4] + header[0]),
                *(header[1], header[2], header[4], header[5], header[6], header[7]),
                data[header[4] : header[4] + header[5]] if header[1] != _ZEROS else bytes(header[5]),
            )
            for header in headers
        ]
        self._image = bytearray()
        self._begins: dict[int, int] = {}
        for number, section in enumerate(self._sections):
            if section.kind in (_PROGRAM, _ZEROS) and section.flags & _IS_LOADED and section.name != ".eh_frame":
                self._begins[number] = self._appended(section.content)

    def _text(self, start: int) -> str:
        return self._data[start : self._data.index(b"\0", start)].decode()

    def _appended(self, content: bytes) -> int:
        """Append to the image, aligned. Returns the offset of the content."""
        self._image += bytes(-len(self._image) % ALIGNMENT)
        self._image += content
        return len(self._image) - len(content)

    @cached_property
    def _symbols(self) -> list[_Symbol]:
        (table,) = (section for section in self._sections if section.kind == _SYMBOLS)
        names = self._sections[table.link].start
        return [
            _Symbol(self._text(names + name), section, value, size)
            for name, _, _, section, value, size in _SYMBOL.iter_unpack(table.content)
        ]

    @cached_property
    def _defined(self) -> dict[str, int]:
        """Symbol → offset in the image."""
        defined = {}
        for symbol in self._symbols:
            if symbol.section in self._begins:
                defined[symbol.name] = self._begins[symbol.section] + symbol.value
            elif symbol.section == _COMMON:
                defined[symbol.name] = self._appended(bytes(symbol.size))
        return defined

    def _relocations(self) -> Iterator[tuple[int, _Symbol, int]]:
        """(offset in the image, symbol, addend) of each word that depends on an address."""
        for section in self._sections:
            if section.kind == _RELOCATIONS and section.info in self._begins:
                for at, info, addend in _RELOCATION.iter_unpack(section.content):
                    if info & 0xFFFFFFFF != _WHOLE_ADDRESS:
                        raise UnknownObjectCode(f"a relocation of type {info & 0xFFFFFFFF} in {section.name}")
                    yield self._begins[section.info] + at, self._symbols[info >> 32], addend

    def laid_out(self, symbol: str, environments: Sequence[tuple[str, str, list[Any]]]) -> MachineCode:
        defined, symbols = self._defined, list[str]()
        places, targets, addends = [], [], []
        for place, named, addend in self._relocations():
            is_here = named.section in self._begins or named.section == _COMMON
            if not is_here and named.section != _UNDEFINED:
                raise UnknownObjectCode(f"{named.name} is in a section that is not loaded")
            if not is_here and named.name not in symbols:
                symbols.append(named.name)
            # The symbol of a section has no name.
            symbol_offset = self._begins[named.section] + named.value if named.section in self._begins else 0
            symbol_offset = defined[named.name] if named.section == _COMMON else symbol_offset
            assert place + WORD_BYTES <= len(self._image)
            places.append(place)
            targets.append(-1 if is_here else symbols.index(named.name))
            addends.append(addend + symbol_offset)
        return MachineCode(
            bytes(self._image),
            defined[symbol],
            tuple(symbols),
            np.array(places, np.int32).tobytes(),
            np.array(targets, np.int32).tobytes(),
            np.array(addends, np.int64).tobytes(),
            tuple((defined.get(name, -1), module, constants) for name, module, constants in environments),
        )
