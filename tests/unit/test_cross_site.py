"""Which requests a browser may have sent for a page of another site, and how they are refused."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest
from multidict import CIMultiDict, CIMultiDictProxy

from coordinator.headers import cross_site
from coordinator.headers.cross_site import HOSTS_CACHED, CrossSite
from shared import telemetry
from shared.errors import ConfigError, Forbidden
from shared.setting_sources import load
from shared.settings import Settings

WRITE, QUERY = "/api/v1/write", "/api/v1/query"


def refusal(method: str, path: str, headers: dict[str, str], **settings: Any) -> str:
    """Why the request is refused; empty if it is not."""
    request: Any = SimpleNamespace(method=method, path=path, headers=CIMultiDictProxy(CIMultiDict(headers)))
    try:
        CrossSite(Settings(**settings)).require(request)
    except Forbidden as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LOCALHOST:9090",
        "localhost.:9090",
        "grafana.localhost:3000",
        "127.0.0.1:9090",
        "192.0.2.7",
        "[::1]:9090",
        "[2001:db8::1]",
        os.uname().nodename + ":9090",
        "",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_own_names_and_addresses_are_known(host: str, method: str) -> None:
    assert not refusal(method, WRITE, {"Host": host})
    assert not refusal(method, WRITE, {})


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:9090",
        "localhost.evil.example",
        "evillocalhost",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "localhost:9090@evil.example",
        "localhost/evil.example",
        "localhost evil.example",
        "[evil.example]",
        "[::1",
        "::1]",
        ":9090",
        "localhost:port",
        "x" * 100_000,
        "1" * 300,
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", QUERY), ("GET", "/metrics"), ("POST", QUERY), ("POST", WRITE)])
def test_a_name_that_may_have_been_rebound_is_refused_for_reads_too(host: str, method: str, path: str) -> None:
    why = refusal(method, path, {"Host": host})
    assert "TRIPTYCH_ALLOWED_HOSTS" in why
    assert len(why) < 400


def test_settings_name_further_hosts() -> None:
    names = ("triptych", "*.example.org")
    for host in ("triptych:9090", "a.example.org", "A.B.Example.Org.:1"):
        assert not refusal("GET", QUERY, {"Host": host}, allowed_hosts=names)
    for host in ("example.org", "evilexample.org", "triptych.evil"):
        assert refusal("GET", QUERY, {"Host": host}, allowed_hosts=names)
    assert not refusal("GET", QUERY, {"Host": "anything.example"}, allowed_hosts=("*",))
    assert not refusal("GET", QUERY, {"Host": "metrics.lan:9090"}, listen="metrics.lan:9090")


OWN = {"Host": "localhost:9090"}


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", WRITE),
        ("POST", "/api/v1/admin/tsdb/delete_series"),
        ("GET", "/api/v1/admin/tsdb/delete_series"),
        ("POST", "/api/v1/log/append"),
        ("PUT", "/api/v1/log/cursors/a"),
        ("DELETE", "/api/v1/vector/collections/a"),
        ("POST", "/api/v1/something/new"),
        ("FOO", WRITE),
    ],
)
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://localhost"},
        {"Origin": "localhost:9090"},
        {"Origin": "http://localhost:9090.evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "something-new"},
        {"Origin": "http://localhost:9090", "Sec-Fetch-Site": "cross-site"},
    ],
)
def test_a_change_from_another_site_is_refused(method: str, path: str, headers: dict[str, str]) -> None:
    assert "TRIPTYCH_ALLOWED_ORIGINS" in refusal(method, path, OWN | headers)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "http://localhost:9090"},
        {"Origin": "https://LOCALHOST:9090", "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ],
)
def test_other_changes_are_not_refused(headers: dict[str, str]) -> None:
    assert not refusal("POST", WRITE, OWN | headers)


@pytest.mark.parametrize(("method", "path"), [("GET", QUERY), ("POST", QUERY), ("POST", "/api/v1/vector/search")])
def test_a_query_is_no_change(method: str, path: str) -> None:
    assert not refusal(method, path, OWN | {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"})


def test_settings_name_origins_that_may_change_data() -> None:
    listed = ("https://grafana.example.org", "http://localhost:3000")
    for origin in (*listed, "HTTPS://Grafana.Example.Org"):
        headers = OWN | {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert not refusal("POST", WRITE, headers, allowed_origins=listed)
    for origin in ("http://grafana.example.org", "https://grafana.example.org.evil.example", "null"):
        assert refusal("POST", WRITE, OWN | {"Origin": origin}, allowed_origins=listed)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TRIPTYCH_ALLOWED_HOSTS", "a.example, triptych:9090"),
        ("TRIPTYCH_ALLOWED_HOSTS", "http://a.example"),
        ("TRIPTYCH_ALLOWED_HOSTS", "*example.org"),
        ("TRIPTYCH_ALLOWED_ORIGINS", "a.example"),
        ("TRIPTYCH_ALLOWED_ORIGINS", "https://a.example/"),
        ("TRIPTYCH_ALLOWED_ORIGINS", "*"),
        ("TRIPTYCH_ALLOWED_ORIGINS", "null"),
    ],
)
def test_a_name_that_could_never_match_is_refused_at_the_start(variable: str, value: str) -> None:
    with pytest.raises(ConfigError, match=variable):
        load({variable: value})


def test_lists_are_separated_by_commas() -> None:
    settings = load({"TRIPTYCH_ALLOWED_HOSTS": " a.example, *.b.example ,", "TRIPTYCH_ALLOWED_ORIGINS": ""})
    assert settings.allowed_hosts == ("a.example", "*.b.example")
    assert settings.allowed_origins == ()


def test_names_that_nobody_has_do_not_fill_memory() -> None:
    checks = CrossSite(Settings())
    for number in range(2 * HOSTS_CACHED):
        request: Any = SimpleNamespace(method="GET", path=QUERY, headers={"Host": f"{number}.evil.example"})
        with pytest.raises(Forbidden):
            checks.require(request)
    assert checks._is_known.cache_info().currsize == HOSTS_CACHED


def test_the_log_says_why_once_in_a_while(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 1000.0
    monkeypatch.setattr(cross_site.time, "monotonic", lambda: now)
    telemetry.configure("info")
    checks = CrossSite(Settings())
    request: Any = SimpleNamespace(remote="192.0.2.1", path=WRITE)
    for _ in range(100):
        checks.log(request, Forbidden("its Host is wrong"))
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert 'remote=192.0.2.1 path=/api/v1/write why="its Host is wrong"' in said[0]
    now += cross_site.LOG_INTERVAL_S
    checks.log(request, Forbidden("again"))
    assert "again" in capsys.readouterr().err
