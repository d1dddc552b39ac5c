"""Numbers, durations and times as texts, as Go's fmt and Prometheus's template functions write them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

NANOSECONDS_MAX = 1 << 63
EXPONENT_FROM = 6
WIDTH_MAX = 1_000
"""The widest field and the most digits of `printf`."""
COMPOSED_CHARS_MAX = 64 << 10
"""The limit on the text of a map or a list."""
_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\*|\d+)?(?:\.(?P<precision>\*|\d+)?)?(?P<verb>.)|%$", re.DOTALL)
_LARGE, _LARGE_BINARY = "kMGTPEZY", ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi")
_SMALL = "munpfazy"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class GoTime:
    """A moment in UTC, in Unix seconds."""

    seconds: float

    def __str__(self) -> str:
        moment = self._moment()
        fraction = f"{moment.microsecond:06d}".rstrip("0")
        return f"{moment:%Y-%m-%d %H:%M:%S}{f'.{fraction}' if fraction else ''} +0000 UTC"

    def _moment(self) -> datetime:
        if not abs(self.seconds) * 1e9 < NANOSECONDS_MAX:
            raise ValueError(f"{number(self.seconds)} cannot be represented as a time: its nanoseconds overflow int64")
        return _EPOCH + timedelta(milliseconds=int(self.seconds * 1000))

    def format(self, layout: str) -> str:
        """As Go's Time.Format: the layout shows how it would write Mon Jan 2 15:04:05 2006."""
        moment = self._moment()
        return _LAYOUT.sub(lambda match: moment.strftime(_LAYOUT_PARTS[match[0]]), layout)


_LAYOUT_PARTS = {
    "January": "%B", "Monday": "%A", "2006": "%Y", "Jan": "%b", "Mon": "%a", "MST": "UTC", "-0700": "+0000",
    "Z07:00": "Z", "-07:00": "+00:00", "01": "%m", "02": "%d", "03": "%I", "04": "%M", "05": "%S", "06": "%y",
    "15": "%H", "PM": "%p",
}  # fmt: skip
_LAYOUT = re.compile("|".join(map(re.escape, _LAYOUT_PARTS)))


@dataclass(frozen=True, slots=True)
class GoDuration:
    seconds: float

    def __str__(self) -> str:
        return _duration(self.seconds)


def _duration(seconds: float) -> str:
    """As Go's Duration.String, to the microsecond."""
    sign, magnitude = ("-", -seconds) if seconds < 0 else ("", seconds)
    if magnitude == 0:
        return "0s"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if magnitude < limit:
            return f"{sign}{_plain(round(magnitude * factor, 6))}{unit}"
    minutes, seconds_left = divmod(round(magnitude, 6), 60)
    hours, minutes = divmod(int(minutes), 60)
    text = f"{_plain(round(seconds_left, 6))}s"
    return sign + (f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text)


def _plain(number: float) -> str:
    return f"{number:.6f}".rstrip("0").rstrip(".")


def number(value: float) -> str:
    """As Go's %v: the shortest text that represents the number, with an exponent below 1e-4 and from 1e+06 on."""
    if not math.isfinite(value):
        return special(value)
    sign, digits, exponent = _digits(repr(value))
    if -4 <= exponent < EXPONENT_FROM:
        return _positional(sign, digits, exponent)
    return f"{sign}{digits[0]}{'.' + digits[1:] if digits[1:] else ''}e{exponent:+03d}"


def special(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else ""


def _digits(text: str) -> tuple[str, str, int]:
    """(sign, significant digits, decimal exponent of the first one) of a float's repr."""
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole) - 1 if whole != "0" else -1 - (len(fraction) - len(fraction.lstrip("0")))
    digits = digits.rstrip("0") or "0"
    return sign, digits, (leading + int(exponent or 0)) if digits != "0" else 0


def _positional(sign: str, digits: str, exponent: int) -> str:
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}{'.' + fraction if fraction else ''}"


def significant(value: float) -> str:
    """As Go's %.4g."""
    return special(value) or f"{value:.4g}"


def humanize(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return significant(value)
    prefix = ""
    if abs(value) >= 1:
        for step in _LARGE:
            if abs(value) < 1000:
                break
            prefix, value = step, value / 1000
    else:
        for step in _SMALL:
            if abs(value) >= 1:
                break
            prefix, value = step, value * 1000
    return significant(value) + prefix


def humanize_1024(value: float) -> str:
    if abs(value) <= 1 or not math.isfinite(value):
        return significant(value)
    prefix = ""
    for step in _LARGE_BINARY:
        if abs(value) < 1024:
            break
        prefix, value = step, value / 1024
    return significant(value) + prefix


def humanize_duration(value: float) -> str:
    if not math.isfinite(value):
        return significant(value)
    if value == 0:
        return "0s"
    if abs(value) < 1:
        prefix = ""
        for step in _SMALL:
            if abs(value) >= 1:
                break
            prefix, value = step, value * 1000
        return f"{significant(value)}{prefix}s"
    sign, magnitude = ("-", -value) if value < 0 else ("", value)
    seconds = int(magnitude)
    parts = (seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60, seconds % 60)
    for first in range(3):
        if parts[first]:
            return sign + " ".join(
                f"{amount}{unit}" for amount, unit in zip(parts[first:], "dhms"[first:], strict=True)
            )
    return f"{sign}{significant(magnitude)}s"


def humanize_timestamp(value: float) -> str:
    return significant(value) if not math.isfinite(value) else str(GoTime(value))


def text_of(value: object) -> str:
    """As Go's %v. Raises ValueError for a map or a list whose text has more than COMPOSED_CHARS_MAX characters."""
    if not isinstance(value, dict | list):
        return _simple_text(value)
    size = 0
    pieces: list[str] = []
    for piece in _pieces(value):
        size += len(piece)
        if size > COMPOSED_CHARS_MAX:
            raise ValueError(f"the text of a map or list has more than {COMPOSED_CHARS_MAX} characters")
        pieces.append(piece)
    return "".join(pieces)


def _pieces(value: object) -> Iterator[str]:
    """The text of a value, in pieces, because a map that contains another one several times may have a text of any
    length."""
    if isinstance(value, dict):
        yield "map["
        for number, (name, element) in enumerate(sorted(value.items())):
            yield f"{' ' if number else ''}{name}:"
            yield from _pieces(element)
        yield "]"
    elif isinstance(value, list):
        yield "["
        for number, element in enumerate(value):
            if number:
                yield " "
            yield from _pieces(element)
        yield "]"
    else:
        yield _simple_text(value)


def _simple_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return number(value)
    if value is None:
        return "<nil>"
    return str(value)


def printf(layout: str, arguments: list[object]) -> str:
    """As Go's Sprintf, for the verbs v d s q f F e E g G x X o b c t T. Raises ValueError for a width above
    WIDTH_MAX."""
    left = list(arguments)

    def one(match: re.Match[str]) -> str:
        verb = match["verb"]
        if verb is None:
            return "%!(NOVERB)"
        if verb == "%":
            return "%"
        width, precision = (_size(match[name], left) for name in ("width", "precision"))
        if "." in match[0] and precision is None:
            precision = 0
        if not left:
            return f"%!{verb}(MISSING)"
        return _verb(verb, match["flags"], width, precision, left.pop(0))

    text = _VERB.sub(one, layout)
    if left:
        text += "%!(EXTRA " + ", ".join(f"{_type(value)}={text_of(value)}" for value in left) + ")"
    return text


def _size(text: str | None, left: list[object]) -> int | None:
    if text is None:
        return None
    if text == "*":
        value = left.pop(0) if left else 0
        size = value if isinstance(value, int) else 0
    else:
        size = int(text) if len(text) < 9 else WIDTH_MAX + 1
    if abs(size) > WIDTH_MAX:
        raise ValueError(f"printf has a width of more than {WIDTH_MAX}")
    return size


def _verb(verb: str, flags: str, width: int | None, precision: int | None, value: object) -> str:
    text = _converted(verb, flags, precision, value)
    if text is None:
        return f"%!{verb}({_type(value)}={text_of(value)})"
    if width is None or len(text) >= abs(width):
        return text
    if "-" in flags or width < 0:
        return text.ljust(abs(width))
    if "0" in flags and isinstance(value, int | float) and not special(float(value)):
        sign, digits = (text[0], text[1:]) if text[:1] in "+-" else ("", text)
        return sign + digits.rjust(width - len(sign), "0")
    return text.rjust(width)


def _converted(verb: str, flags: str, precision: int | None, value: object) -> str | None:
    """The text of a value for this verb; None if the verb does not fit the value."""
    plus = "+" if "+" in flags else " " if " " in flags else ""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if verb == "T":
        return _type(value)
    if verb == "v" and not (isinstance(value, float) and precision is not None):
        text = text_of(value)
        return plus + text if is_number and plus and text[0] not in "+-" else text
    if verb == "t":
        return text_of(value) if isinstance(value, bool) else None
    if verb in "sqxX" and not is_number and not isinstance(value, bool):
        own = text_of(value)
        own = own if precision is None else own[:precision]
        if verb == "s":
            return own
        return own.encode().hex() if verb == "x" else own.encode().hex().upper() if verb == "X" else _quoted(own)
    if not is_number or not isinstance(value, int | float):
        return None
    if isinstance(value, int) and verb in "dxXob":
        return format(value, f"{plus}{verb}")
    if isinstance(value, int) and verb in "cq":
        is_character = 0 <= value < 0x110000 and not 0xD800 <= value < 0xE000  # no half of a surrogate pair
        character = chr(value) if is_character else "\ufffd"
        return character if verb == "c" else repr(character)
    if isinstance(value, float) and verb in "feEgGFv":
        if special(value):
            return special(value).removeprefix("+") if "+" not in flags else special(value)
        if precision is None and verb in "gGv":
            text = number(value).upper() if verb == "G" else number(value)
            return plus + text if plus and text[0] != "-" else text
        return format(value, f"{plus}.{6 if precision is None else precision}{verb.replace('v', 'g')}")
    return None


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _type(value: object) -> str:
    names: dict[type, str] = {bool: "bool", int: "int", float: "float64", str: "string", type(None): "<nil>"}
    return names.get(type(value), "map[string]string" if isinstance(value, dict) else "interface {}")
