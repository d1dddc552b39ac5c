"""The examples of docs/security.md can be used as they are."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from coordinator import cli
from coordinator.access import tokens, web_config
from coordinator.access.policy import Policy, require_safe
from shared.errors import ConfigError
from shared.setting_sources import load
from shared.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()


def examples(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_files_are_read() -> None:
    web = [text for text in examples("yaml") if "remote_write" not in text]
    assert [sorted(web_config.parse(text.encode(), Path("web.yml")).users()) for text in web] == [["alice"], []]
    assert [list(tokens.parse(text.encode(), Path("tokens.toml"))) for text in examples("toml")] == [["grafana"]]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_takes_its_example(tmp_path: Path) -> None:
    for name in ("prometheus.token", "ca.pem"):
        (tmp_path / name).touch()
    (example,) = [text for text in examples("yaml") if "remote_write" in text]
    (tmp_path / "prometheus.yml").write_text(example)
    command = ["promtool", "check", "config", "prometheus.yml"]
    judged = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert judged.returncode == 0, judged.stderr


def test_commands_make_the_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for text in examples("sh") for line in text.splitlines() if line.startswith("triptych token")]
    for line in lines:
        command, _, _ = line.partition(" > ")
        assert cli.main(shlex.split(command)[1:]) == 0
    assert len(capsys.readouterr().out.split()) == len(lines) == 2
    assert list(tokens.parse(Path("tokens.toml").read_bytes(), Path("x"))) == ["prometheus", "grafana"]


def test_settings_exist() -> None:
    named = {name.lower() for name in re.findall(r"TRIPTYCH_([A-Z_]+)", PAGE)} - {"token"}
    assert named - {field.name.removesuffix("_ms") for field in fields(Settings)} == set()


def test_the_refusal_of_a_start_is_as_shown() -> None:
    (shown,) = [text for text in examples("") if "which other hosts reach" in text]
    with pytest.raises(ConfigError) as refused:
        require_safe(load({"TRIPTYCH_LISTEN": "0.0.0.0:9090"}), Policy())
    assert f"triptych coordinator: {refused.value}".startswith(shown.strip().removesuffix("…"))
