"""The page's modules export what others import, and vendor.js has nothing that nobody uses: it is loaded first."""

from __future__ import annotations

import re
from pathlib import Path

import coordinator.ui

UI = Path(coordinator.ui.__file__).parent
MODULES = {path: path.read_text() for path in UI.rglob("*.js") if "vendor" not in path.relative_to(UI).parts[0]}
TESTS = "".join(path.read_text() for path in (Path(__file__).parents[1] / "page").rglob("*.py"))
IMPORTS = re.compile(r"^import\s*\{([^}]*)\}\s*from\s*\"([^\"]+)\"", re.MULTILINE)
EXPORTS = re.compile(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", re.MULTILINE)


def names(listed: str) -> set[str]:
    return {name.split(" as ")[-1].strip() for name in listed.split(",") if name.strip()}


def imported(text: str, file: str) -> set[str]:
    lists = [listed for listed, source in IMPORTS.findall(text) if source.rpartition("/")[2] == file]
    return set().union(*({name.split(" as ")[0].strip() for name in own.split(",") if name.strip()} for own in lists))


def test_the_modules_are_found() -> None:
    assert len(MODULES) > 50
    assert any(imported(text, "vendor.js") for text in MODULES.values())


def test_vendor_has_what_the_page_imports_and_nothing_else() -> None:
    entry = (UI / "vendor" / "entry.js").read_text()
    lists = re.findall(r"^export \{([^}]*)\}", entry, re.MULTILINE)
    exported = set().union(*map(names, lists)) | set(EXPORTS.findall(entry))
    assert exported == set().union(*(imported(text, "vendor.js") for text in MODULES.values()))


def test_what_a_module_exports_another_or_a_test_uses() -> None:
    unused = []
    for path, text in MODULES.items():
        others = "".join(other for its_path, other in MODULES.items() if its_path != path) + TESTS
        unused += [f"{path.name}: {name}" for name in EXPORTS.findall(text) if not re.search(rf"\b{name}\b", others)]
    assert not unused
