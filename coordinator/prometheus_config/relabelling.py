"""Relabelling: rules that change or drop label sets, for targets, samples and alerts.

https://prometheus.io/docs/prometheus/latest/configuration/configuration/#relabel_config. Regular expressions are RE2,
match the whole value, and have the same limits as in queries.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coordinator import letter_case
from coordinator.prometheus_config.yaml_fields import Section
from shared.errors import BadData
from shared.promql.regex import Regex, unchecked

ACTIONS = (
    "replace",
    "keep",
    "drop",
    "keepequal",
    "dropequal",
    "hashmod",
    "labelmap",
    "labeldrop",
    "labelkeep",
    "lowercase",
    "uppercase",
)
SEPARATOR, REGEX, REPLACEMENT = ";", "(.*)", "$1"
"""The defaults."""
RULES_MAX = 1_000
LABELS_MAX = 1_000
"""The most labels of a set after a rule: `labelmap` can add one for each existing label."""
VALUE_CHARS_MAX = 64 << 10
"""The longest name or value that a rule may produce. Without a limit, a few rules with `$1$1` could fill all memory."""

_REFERENCE = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
"""The number of a group. As in Go's `Regexp.Expand`, digits after a leading zero, or more than nine digits, are a
name."""
_WITH_TARGET = ("replace", "hashmod", "lowercase", "uppercase", "keepequal", "dropequal")
_ONLY_REGEX = ("labeldrop", "labelkeep")
_ONLY_EQUALITY = ("keepequal", "dropequal")

Template = tuple[str | int, ...]
"""Literal texts, and numbers of groups."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `target_label` and `replacement` may refer to groups of `pattern`."""

    action: str
    sources: tuple[str, ...]
    separator: str
    regex: str
    target_label: str
    replacement: str
    modulus: int
    pattern: Regex = field(compare=False)
    target_template: Template = ()
    replacement_template: Template = ()


def read(sections: Sequence[Section]) -> tuple[Rule, ...]:
    """The rules of a list in a configuration file. Raises ConfigError, which names line and field."""
    if len(sections) > RULES_MAX:
        raise sections[0].error(f"is one of {len(sections)} rules; there may be {RULES_MAX}")
    return tuple(_rule(section) for section in sections)


def _rule(section: Section) -> Rule:
    action = section.text("action", "replace").lower()
    if action not in ACTIONS:
        raise section.error(f"is {action[:100]!r}; it must be one of {', '.join(ACTIONS)}", "action")
    sources = tuple(section.texts("source_labels"))
    separator, regex = section.text("separator", SEPARATOR), section.text("regex", REGEX)
    target, replacement = section.text("target_label"), section.text("replacement", REPLACEMENT)
    modulus = section.whole("modulus")
    section.finish()
    try:
        pattern = Regex(regex, captures=True)
    except ValueError as error:
        raise section.error(f"is {regex[:100]!r}, which cannot be used: {error}", "regex") from None
    if action in _WITH_TARGET and not target:
        raise section.error(f"action {action} needs target_label")
    if action == "hashmod" and not modulus:
        raise section.error("action hashmod needs modulus, a number above 0")
    if action in ("lowercase", "uppercase", *_ONLY_EQUALITY) and replacement != REPLACEMENT:
        raise section.error(f"action {action} takes no replacement", "replacement")
    is_plain = (separator, replacement, modulus) == (SEPARATOR, REPLACEMENT, 0)
    if action in _ONLY_REGEX and not (is_plain and not sources and not target):
        raise section.error(f"action {action} takes regex and nothing else")
    if action in _ONLY_EQUALITY and not (is_plain and regex == REGEX):
        raise section.error(f"action {action} takes source_labels and target_label and nothing else")
    if action == "labelmap" and not replacement:
        raise section.error("action labelmap needs a replacement", "replacement")
    templates = (_template(text, pattern) for text in (target, replacement))
    return Rule(action, sources, separator, regex, target, replacement, modulus, pattern, *templates)


def is_plain(name: str) -> bool:
    """Whether this is a valid label name in every version of Prometheus."""
    return name.isascii() and name.isidentifier()


def apply(labels: Mapping[str, str], rules: Sequence[Rule], *, only_plain_names: bool = False) -> dict[str, str] | None:
    """Apply the rules to a label set. Returns the new set, without empty values, or None if a rule drops it.
    `only_plain_names`: a rule with action replace is skipped if it would set a label whose name is not plain.

    Raises BadData or NotExecutable if a value is too long for its rule, or if a rule produces too much.
    """
    result = {name: value for name, value in labels.items() if value}
    for rule in rules:
        if not _apply_one(result, rule, only_plain_names):
            return None
        if len(result) > LABELS_MAX:
            raise BadData(f"a relabelling rule with action {rule.action} makes more than {LABELS_MAX} labels")
    return result


def _apply_one(labels: dict[str, str], rule: Rule, only_plain_names: bool) -> bool:
    """Apply one rule to the labels, in place. Returns False if they are dropped."""
    value = rule.separator.join(labels.get(source, "") for source in rule.sources)
    match rule.action:
        case "keep":
            return _groups(rule, value) is not None
        case "drop":
            return _groups(rule, value) is None
        case "keepequal":
            return labels.get(rule.target_label, "") == value
        case "dropequal":
            return labels.get(rule.target_label, "") != value
        case "replace":
            groups = _groups(rule, value)
            if groups is not None:
                target = _expanded(rule.target_template, groups)
                if not only_plain_names or is_plain(target):
                    _set(labels, target, _expanded(rule.replacement_template, groups))
        case "lowercase":
            _set(labels, rule.target_label, letter_case.lower(value))
        case "uppercase":
            _set(labels, rule.target_label, letter_case.upper(value))
        case "hashmod":
            digest = hashlib.md5(value.encode(), usedforsecurity=False).digest()
            _set(labels, rule.target_label, str(int.from_bytes(digest[8:], "big") % rule.modulus))
        case "labelmap":
            for name, label_value in list(labels.items()):
                groups = _groups(rule, name)
                if groups is not None:
                    _set(labels, _expanded(rule.replacement_template, groups), label_value)
        case _:
            for name in list(labels):
                if (_groups(rule, name) is not None) == (rule.action == "labeldrop"):
                    del labels[name]
    return True


def _set(labels: dict[str, str], name: str, value: str) -> None:
    """Set a label. An empty value removes it; an empty name is ignored."""
    if not name:
        return
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


def _groups(rule: Rule, text: str) -> Sequence[str] | None:
    """The whole text and what each group matches; None if the pattern does not match the whole text."""
    (match,) = rule.pattern.captured([text.encode(errors="surrogatepass")], unchecked)
    if match is None:
        return None
    return [(group or b"").decode(errors="replace") for group in (match[0], *match.groups())]


def _template(text: str, pattern: Regex) -> Template:
    """Parse a template. `$1`, `${1}`, `$name` and `${name}` refer to groups, `$$` is a dollar sign, and any other `$`
    stands for itself. A group that does not exist is empty."""
    parts: list[str | int] = []
    at = 0
    for reference in _REFERENCE.finditer(text):
        parts.append(text[at : reference.start()])
        at = reference.end()
        name = reference[1] or reference[2]
        if name is None:
            parts.append("$")
        elif _NUMBER.fullmatch(name):
            if int(name) <= pattern.groups:
                parts.append(int(name))
        elif name in pattern.group_numbers:
            parts.append(pattern.group_numbers[name])
    parts.append(text[at:])
    return tuple(part for part in parts if part != "")


def _expanded(template: Template, groups: Sequence[str]) -> str:
    texts = [part if isinstance(part, str) else groups[part] for part in template]
    size = sum(map(len, texts))
    if size > VALUE_CHARS_MAX:
        raise BadData(f"a relabelling rule makes a text of {size} characters; at most {VALUE_CHARS_MAX} are allowed")
    return "".join(texts)
