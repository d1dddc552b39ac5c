"""The lock file of the release image, its Containerfile, and the units of systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
EXPOSURE_MAX = 15
"""Of `systemd-analyze security`, in tenths: 0 is a process that can do nothing, 96 one without any restriction."""


def locked() -> dict[str, list[tuple[Version, str, int]]]:
    """Name → (version, marker, number of hashes) of every entry; a name may have one for each marker."""
    entries: dict[str, list[tuple[Version, str, int]]] = {}
    text = (DEPLOY / "requirements.lock").read_text().replace("\\\n", " ")
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            requirement = Requirement(line.split(" --hash", 1)[0].strip())
            (pin,) = requirement.specifier
            assert pin.operator == "==", line
            hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}(?= |$)", line)
            entry = (Version(pin.version), str(requirement.marker or ""), len(hashes))
            entries.setdefault(canonicalize_name(requirement.name), []).append(entry)
    return entries


def test_every_entry_of_the_lock_file_has_hashes() -> None:
    entries = locked()
    assert len(entries) > 20
    assert [name for name, versions in entries.items() for _, _, hashes in versions if not hashes] == []


def test_the_lock_file_satisfies_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    for extra in ("traces", "s3"):
        required += project["project"]["optional-dependencies"][extra]
    entries = locked()
    for text in required:
        requirement = Requirement(text)
        versions = entries.get(canonicalize_name(requirement.name), [])
        assert versions, f"{text} is not in the lock file; run `make lock`"
        for version, _, _ in versions:
            assert requirement.specifier.contains(version), f"{text}: {version} is locked; run `make lock`"


def test_the_image_installs_what_is_locked_and_runs_as_an_unprivileged_user() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    installs = [line for line in lines if "pip install" in line]
    assert len(installs) == 2
    assert all("--no-deps" in line and ("--require-hashes" in line or "--no-index" in line) for line in installs)
    copied = [word for line in lines if re.match(r"COPY (?!--from)", line) for word in line.split()[1:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    final = lines[max(number for number, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert [line for line in final if line.startswith("USER ")] == ["USER 10001:10001"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_units_are_correct_and_the_services_are_confined(tmp_path: Path) -> None:
    for name in ("triptych@.service", "triptych.target"):
        text = (DEPLOY / name).read_text().replace("/opt/triptych/bin/python", sys.executable)
        (tmp_path / name).write_text(text)
    verify = ["systemd-analyze", "verify", "--man=no", *(str(path) for path in sorted(tmp_path.iterdir()))]
    assert subprocess.run(verify, capture_output=True, text=True, check=False).stderr == ""
    audit = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE_MAX}"]
    ran = subprocess.run([*audit, str(tmp_path / "triptych@.service")], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
