"""The configuration file in Prometheus's format: what it may say, how mistakes are named, and reading it again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from coordinator.prometheus_config import config_file, yaml_fields
from coordinator.prometheus_config import http_client as http_client_config
from coordinator.prometheus_config.config_file import ConfigFile, Configuration
from shared.errors import ConfigError

WHOLE = """
global:
  scrape_interval: 15s
  evaluation_interval: 1m30s
  rule_query_offset: 5s
  sample_limit: 10
  external_labels: {region: eu, replica: 0}
rule_files: [rules/*.yml, /etc/more.yml]
alerting:
  alertmanagers:
    - static_configs: [{targets: ["am:9093"]}]
      basic_auth: {username: u, password: hunter2}
scrape_configs:
  - job_name: node
    static_configs: [{targets: [localhost:9100]}]
"""


def test_every_section_is_read(tmp_path: Path) -> None:
    read = config_file.parse(WHOLE.encode(), tmp_path / "prometheus.yml")
    general = read.global_
    assert (general.scrape_interval_ms, general.scrape_timeout_ms, general.evaluation_interval_ms) == (
        15_000,
        10_000,
        90_000,
    )
    assert (general.rule_query_offset_ms, general.external_labels) == (5_000, {"region": "eu", "replica": "0"})
    assert general.scrape == {"sample_limit": "10"}
    assert read.rule_files == [str(tmp_path / "rules/*.yml"), "/etc/more.yml"]
    assert read.alerting is not None and len(read.scrape_configs) == 1
    job = read.scrape_configs[0]
    assert (job.text("job_name"), job.where) == ("node", "scrape_configs[0]")


def test_an_empty_file_has_the_defaults_of_prometheus() -> None:
    assert config_file.parse(b"", Path("p.yml")).global_ == config_file.Global(60_000, 10_000, 60_000, 0, {}, {})
    assert config_file.parse(b"global:\n  scrape_interval: 5s", Path("p.yml")).global_.scrape_timeout_ms == 5_000


def test_the_file_is_shown_without_secrets() -> None:
    shown = config_file.parse(WHOLE.encode(), Path("p.yml")).shown()
    assert "hunter2" not in shown and "<secret>" in shown and "username: u" in shown
    assert "scrape_timeout: 10000ms" in shown


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("rule_file: [a]", "p.yml: line 1: rule_file: unknown field 'rule_file'; did you mean rule_files?"),
        ("\nglobal:\n  scrape_intervall: 1s", "p.yml: line 3: global.scrape_intervall: unknown field"),
        ("global: {scrape_interval: soon}", "global.scrape_interval: is 'soon'; it must be a duration such as 30s"),
        ("global: {scrape_interval: 1s, scrape_timeout: 2s}", "is longer than scrape_interval"),
        ("global: []", "global: is a list; it must be a mapping"),
        ("global: {external_labels: {__name__: x}}", "'__name__' is not a label name"),
        ("global: {external_labels: {a: [x]}}", "'a' is a list; it must be text"),
        ("rule_files: a.yml", "rule_files: is text; it must be a list"),
        ("rule_files: [{}]", "rule_files: has a mapping; it must be a list of texts"),
        ("scrape_configs: [a]", "scrape_configs: has text as its item 0"),
        ("remote_write: [{url: x}]", "remote_write: is not served"),
        ("a: 1\na: 2", "line 2: 'a' is given twice"),
        ("- a", "the file is a list; it must be a mapping"),
        ("a: 1\n---\nb: 2", "a second document begins"),
        ("a: *b", "the alias 'b' stands for nothing"),
        ("a: &b [*b]", "the alias 'b' stands for nothing"),
        ("? [a]\n: b", "a key must be text"),
        ("a: [", "p.yml: line 2:"),
        ("a: " + "[" * 60 + "]" * 60, "nested more than 50 deep"),
        ("\0", "p.yml:"),
    ],
)
def test_a_mistake_is_named_with_its_line(text: str, named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        config_file.parse(text.encode(), Path("p.yml"))
    assert named in str(refused.value)


def test_aliases_and_merges_stand_for_what_they_name() -> None:
    section = yaml_fields.parse(b"a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}\nc: *a\n", "f.yml")
    assert section.mapping("b") == {"x": "1", "y": "3"}
    assert section.mapping("c") == {"x": "1", "y": "2"}


def test_a_file_that_grows_by_its_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ConfigError, match="values, with those that aliases stand for"):
        yaml_fields.parse("\n".join(lines).encode(), "f.yml")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    for path, named in ((tmp_path, "cannot be read|no regular file"), (tmp_path / "none", "cannot be read")):
        with pytest.raises(ConfigError, match=named):
            config_file.read(path)


def test_credentials_become_a_header(tmp_path: Path) -> None:
    def header(text: str) -> str:
        section = yaml_fields.parse(text.encode(), tmp_path / "f.yml")
        client = http_client_config.read(section)
        section.finish()
        return client.request_headers().get("Authorization", "")

    (tmp_path / "secret").write_text("s3cret\n")
    assert header("basic_auth: {username: u, password: p}") == "Basic dTpw"
    assert header("authorization: {credentials: t}") == "Bearer t"
    assert header("authorization: {type: Token, credentials_file: secret}") == "Token s3cret"
    assert header("bearer_token_file: secret") == "Bearer s3cret"
    assert header("") == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("proxy_url: http://p", "proxy_url: is not served"),
        ("oauth2: {client_id: x}", "oauth2: is not served"),
        ("{basic_auth: {username: u}, bearer_token: t}", "at most one of basic_auth, authorization"),
        ("basic_auth: {password: p, password_file: f}", "at most one of password and password_file"),
        ("basic_auth: {usrname: u}", "did you mean username?"),
        ("authorization: {type: Basic}", "use basic_auth"),
        ("bearer_token_file: none", "cannot be read"),
        ("tls_config: {ca_file: none}", "the certificates cannot be used"),
        ("tls_config: {min_version: SSL3}", "a TLS version is 'SSL3'"),
        ('bearer_token: "a\\nb"', "a character that no header may have"),
    ],
)
def test_what_a_request_could_not_do_is_refused(tmp_path: Path, text: str, named: str) -> None:
    section = yaml_fields.parse(text.encode(), tmp_path / "f.yml")
    with pytest.raises(ConfigError) as refused:
        http_client_config.read(section)
    assert named in str(refused.value)


class Part:
    """Follows the file, unless its rule files have the name that it refuses."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses, self.used = refuses, [""]
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def prepare(self, configuration: Configuration) -> Any:
        self.may_go_on.wait(10)
        names = [Path(name).name for name in configuration.rule_files]
        if self.refuses in names:
            raise ConfigError(f"{self.refuses} is refused")
        return ",".join(names)

    def use(self, prepared: Any) -> None:
        self.used.append(prepared)


async def test_all_parts_follow_a_new_file_or_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "p.yml"
    keeper = ConfigFile(path)
    keeper.parts = parts = [Part(), Part(refuses="bad.yml")]
    path.write_text("rule_files: [good.yml]")
    await keeper.load()
    assert [part.used[-1] for part in parts] == ["good.yml", "good.yml"] and keeper.is_current
    loaded_at = keeper.loaded_at
    for text in ("rule_files: [bad.yml]", "rule_filez: []"):
        path.write_text(text)
        with pytest.raises(ConfigError):
            await keeper.load()
        assert [part.used[-1] for part in parts] == ["good.yml", "good.yml"]
        assert not keeper.is_current and keeper.loaded_at == loaded_at
        assert [Path(name).name for name in keeper.in_force.rule_files] == ["good.yml"]
    path.write_text("rule_files: [other.yml]")
    await keeper.load()
    assert [part.used[-1] for part in parts] == ["other.yml", "other.yml"] and keeper.is_current


async def test_a_file_that_is_never_read_delays_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_file, "READ_TIMEOUT_S", 0.01)
    path = tmp_path / "p.yml"
    path.write_text("")
    part = Part()
    keeper = ConfigFile(path)
    keeper.parts = [part]
    part.may_go_on.clear()
    with pytest.raises(ConfigError, match="were not read within"):
        await keeper.load()
    with pytest.raises(ConfigError, match="still being read"):
        await keeper.load()
    part.may_go_on.set()
    assert keeper._reading is not None
    await asyncio.wait([keeper._reading])
    assert part.used == [""]
    monkeypatch.setattr(config_file, "READ_TIMEOUT_S", 10.0)
    await keeper.load()
    assert part.used == ["", ""] and keeper.is_current


async def test_without_a_file_there_is_nothing_to_read() -> None:
    with pytest.raises(ConfigError, match="TRIPTYCH_PROMETHEUS_CONFIG"):
        await ConfigFile(None).load()
