"""What the files make of the service, and what it refuses to start with or to change to."""

from __future__ import annotations

import asyncio
import os
import ssl
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace

import bcrypt
import pytest
import trustme
from aiohttp.test_utils import make_mocked_request

from coordinator.access import gatekeeper as module
from coordinator.access.gatekeeper import Gatekeeper
from coordinator.access.policy import Policy
from coordinator.access.roles import ANY_CREDENTIAL, Area, Need, Role
from coordinator.http.entrance import turned_away
from coordinator.limits.admission import Admission, Holder
from coordinator.limits.connections import Connections
from shared.errors import ConfigError, Forbidden, Overloaded, Unauthorized
from shared.settings import Settings

HASH = bcrypt.hashpw(b"s", bcrypt.gensalt(4)).decode()
USERS = f"basic_auth_users:\n  u: {HASH}\n"
TLS = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.pem\n"
MUTUAL = TLS + "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: server.pem\n"
NAMES = "  client_allowed_sans: [agent.example]\n"
TOKENS = f'[t]\nhash = "{HASH}"\nlog = "write"\n'
READ_LOG = Need(Area.LOG, Role.READ)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    return tmp_path


def settings(files: Path, web: str | None = None, tokens: str | None = None, **more: object) -> Settings:
    """With these contents of the files; None: the setting is not there."""
    names: dict[str, object] = {}
    for name, content in (("web_config", web), ("tokens", tokens)):
        if content is not None:
            (files / name).write_text(content)
            names[name] = str(files / name)
    return Settings(**names, **more)  # type: ignore[arg-type]


BEYOND = {"listen": "0.0.0.0:0"}


@pytest.mark.parametrize(
    ("web", "tokens", "missing"),
    [
        (None, None, "without TLS and without authentication"),
        (TLS, None, "without authentication"),
        (USERS, None, "without TLS"),
        (None, TOKENS, "without TLS"),
        (TLS.replace("Config", "") + "  client_auth_type: VerifyClientCertIfGiven\n", None, "without authentication"),
        (TLS + USERS, None, ""),
        (TLS, TOKENS, ""),
        (MUTUAL, None, ""),
    ],
    # Not by the texts, whose hashes are others in each process.
    ids=["nothing", "TLS", "users", "tokens", "certificates if given", "TLS and users", "TLS and tokens", "mutual TLS"],
)
async def test_beyond_loopback_a_start_needs_tls_and_authentication(
    files: Path, web: str | None, tokens: str | None, missing: str
) -> None:
    for listen in ("127.0.0.1:0", "localhost:0", "[::1]:0"):
        Gatekeeper(settings(files, web, tokens, listen=listen)).stop()
    for listen in ("0.0.0.0:0", "[::]:0", "10.0.0.1:0", "example.org:0", ":0"):
        Gatekeeper(settings(files, web, tokens, listen=listen, insecure=True)).stop()
        if not missing:
            Gatekeeper(settings(files, web, tokens, listen=listen)).stop()
            continue
        with pytest.raises(ConfigError) as refused:
            Gatekeeper(settings(files, web, tokens, listen=listen))
        assert f"reach, {missing}; " in str(refused.value)
        assert "TRIPTYCH_INSECURE=true" in str(refused.value)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("web", "tokens", "why"),
    [
        ("x: 1", None, "unknown field `x`"),
        (TLS.replace("server.pem", "none.pem"), None, "cert_file names"),
        (None, "", "which has no token"),
        (None, "x = 1", "Expected"),
    ],
)
async def test_a_file_that_cannot_be_used_refuses_the_start(
    files: Path, web: str | None, tokens: str | None, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Gatekeeper(settings(files, web, tokens))
    for name in ("web_config", "tokens"):
        with pytest.raises(ConfigError, match=f"TRIPTYCH_{name.upper()} names .*, which cannot be read"):
            Gatekeeper(Settings(**{name: str(files / "none")}))  # type: ignore[arg-type]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["web_config", "tokens"])
async def test_a_pipe_is_no_file_and_holds_no_start_up(files: Path, name: str) -> None:
    os.mkfifo(files / "pipe")
    with pytest.raises(ConfigError, match="which is no regular file"):
        Gatekeeper(Settings(**{name: str(files / "pipe")}))  # type: ignore[arg-type]


async def test_without_files_everybody_may_do_everything(files: Path) -> None:
    open_to_all = Gatekeeper(settings(files))
    assert open_to_all.is_open
    assert open_to_all.known(None, Need(None, Role.ADMIN)) is not None


@pytest.mark.parametrize(("interval", "is_said"), [("1s", True), ("0", False)])
async def test_a_limit_that_is_not_applied_is_said_in_the_log(
    files: Path, caplog: pytest.LogCaptureFixture, interval: str, is_said: bool
) -> None:
    Gatekeeper(settings(files, f"rate_limit:\n  interval: {interval}\n  burst: 2\n")).stop()
    assert ("rate_limit is not applied" in caplog.text) == is_said


async def test_health_is_closed_by_setting(files: Path) -> None:
    is_open = Gatekeeper(settings(files, USERS))
    await is_open.compared(None, "/-/healthy", ANY_CREDENTIAL, "here")
    closed = Gatekeeper(settings(files, USERS, health_open=False))
    for route in ("/-/healthy", "/-/ready"):
        with pytest.raises(Unauthorized):
            await closed.compared(None, route, ANY_CREDENTIAL, "here")
    with pytest.raises(Unauthorized):
        await is_open.compared(None, "/metrics", ANY_CREDENTIAL, "here")
    for one in (is_open, closed):
        one.stop()


async def test_what_was_compared_is_known_and_roles_are_looked_at_each_time(files: Path) -> None:
    gate = Gatekeeper(settings(files, USERS, TOKENS))
    header = "Bearer triptych.t.s"
    assert gate.known(header, READ_LOG) is None
    assert (await gate.compared(header, "/x", READ_LOG, "here")).name == "token t"
    assert gate.known(header, READ_LOG) is not None
    for need in (Need(Area.METRICS, Role.READ), Need(Area.LOG, Role.ADMIN), Need(None, Role.ADMIN)):
        with pytest.raises(Forbidden, match="the token t does not have the role"):
            gate.known(header, need)
    assert gate.refused["forbidden"] == 3
    gate.stop()


async def until(condition: object) -> None:
    async with asyncio.timeout(5):
        while not condition():  # type: ignore[operator]
            await asyncio.sleep(0.01)


async def test_changed_files_are_read_and_weaker_ones_are_not(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    gate = Gatekeeper(settings(files, TLS + USERS, TOKENS))
    gate.start()
    basic = "Basic " + b64encode(b"u:s").decode()
    await gate.compared(basic, "/x", READ_LOG, "here")
    assert gate.known(basic, READ_LOG) is not None
    (files / "web_config").write_text(TLS + USERS.replace("  u:", "  v:"))
    await until(lambda: gate.reloads["success"] == 1)
    assert gate.known(basic, READ_LOG) is None
    with pytest.raises(Unauthorized):
        await gate.compared(basic, "/x", READ_LOG, "here")
    for failures, content in enumerate(("", TLS + "x: 1", "basic_auth_users: ["), 1):
        (files / "web_config").write_text(content)
        await until(lambda: gate.reloads["failure"] == failures)  # noqa: B023
        assert not gate.is_current
    (files / "web_config").write_text(TLS + USERS)
    await until(lambda: gate.is_current)
    await gate.compared(basic, "/x", READ_LOG, "here")
    (files / "server.pem").write_text("half of a certifi")
    await until(lambda: not gate.is_current)
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(files / "server.pem"))
    await until(lambda: gate.is_current)
    gate.stop()


async def test_files_are_looked_at_again_after_one_could_not_be_opened(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    gate = Gatekeeper(settings(files, USERS))
    with monkeypatch.context() as patch:

        def full(_: Settings) -> Policy:
            raise OSError(24, "Too many open files")

        patch.setattr(module, "read", full)
        gate.start()
        await until(lambda: gate.reloads["failure"] == 1)
        assert not gate.is_current
    await until(lambda: gate.is_current)
    gate.stop()


async def test_comments_between_authorities_may_have_any_letters(files: Path) -> None:
    authority = files / "authority.pem"
    pem = (files / "server.pem").read_bytes()
    authority.write_bytes("# Autorité de certification, Zürich\n".encode() + pem)
    Gatekeeper(settings(files, MUTUAL.replace("client_ca_file: server", "client_ca_file: authority")))
    before, begin, after = pem.partition(b"BEGIN CERTIFICATE-----\n")
    authority.write_bytes(before + begin + b"\xc3" + after[1:])
    with pytest.raises(ConfigError, match="client_ca_file"):
        Gatekeeper(settings(files, MUTUAL.replace("client_ca_file: server", "client_ca_file: authority")))


async def test_an_empty_file_of_authorities_does_not_stand_for_those_of_the_system(files: Path) -> None:
    (files / "authority.pem").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"client_ca_file .* must have certificates as PEM"):
        Gatekeeper(settings(files, MUTUAL.replace("client_ca_file: server", "client_ca_file: authority")))


@pytest.mark.parametrize(
    ("before", "weaker", "why"),
    [
        (MUTUAL + USERS, MUTUAL, "show a credential"),
        (MUTUAL + USERS, TLS + USERS, "show a certificate"),
        (MUTUAL + USERS, MUTUAL.replace("  client_ca_file: server.pem\n", "") + USERS, "client_ca_file would be gone"),
        (MUTUAL + NAMES + USERS, MUTUAL + USERS, "client_allowed_sans would be gone"),
    ],
)
async def test_a_reload_ends_neither_the_need_for_credentials_nor_that_for_certificates(
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    before: str,
    weaker: str,
    why: str,
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    gate = Gatekeeper(settings(files, before))
    gate.start()
    (files / "web_config").write_text(weaker)
    await until(lambda: gate.reloads["failure"] == 1)
    assert why in str(vars(caplog.records[-1])["fields"]["why"])
    assert not gate.is_open
    assert gate.tls is not None
    assert gate.tls.context.verify_mode == ssl.CERT_REQUIRED
    gate.stop()


async def test_a_reload_does_not_end_the_need_for_credentials(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.02)
    gate = Gatekeeper(settings(files, USERS))
    gate.start()
    (files / "web_config").write_text("")
    await until(lambda: gate.reloads["failure"] == 1)
    assert not gate.is_open
    gate.stop()


class _Connection:
    holder: Holder
    head_bytes = 0

    def end(self) -> None: ...

    def unsent_bytes(self) -> int:
        return 0


async def test_a_request_that_is_turned_away_is_no_longer_at_work(files: Path) -> None:
    gate = Gatekeeper(settings(files, USERS, TOKENS))
    bounds = Settings()
    admission = Admission(bounds)
    turns: list[int] = []
    context = SimpleNamespace(
        access=gate,
        admission=admission,
        connections=Connections(bounds, admission, 10),
        waiting_room=SimpleNamespace(admit=lambda: turns.append(admission.announced)),
        telemetry=SimpleNamespace(served=lambda *_: None, refuse=lambda _: None),
        cors=SimpleNamespace(is_on=False),
    )
    connection = _Connection()
    assert context.connections.opened(connection, "10.0.0.1")
    for header, status in ((None, 401), ("Bearer triptych.t.wrong", 401), ("Bearer triptych.t.s", 403)):
        request = make_mocked_request("GET", "/api/v1/query", headers={"Authorization": header} if header else {})
        resource = SimpleNamespace(canonical="/api/v1/query")
        request._match_info = SimpleNamespace(route=SimpleNamespace(resource=resource))  # type: ignore[assignment]
        request._protocol = connection  # type: ignore[assignment]
        for _ in range(2):
            admission.announce(connection.holder, "/api/v1/query")
            answer = await turned_away(request, context)  # type: ignore[arg-type]
            assert answer is not None
            assert answer.status == status
            assert admission.announced == 0
            assert turns.pop() == 0
    gate.stop()


def test_requests_count_for_their_token_and_later_ones_for_their_address() -> None:
    bounds = Settings(requests_in_flight_max=100, client_share=50)
    admission = Admission(bounds)
    connections = Connections(bounds, admission, 100)
    pair = _Connection(), _Connection()
    for one, address in zip(pair, ("10.0.0.1", "10.0.0.2"), strict=True):
        assert connections.opened(one, address)
        connections.heard(one)
        connections.identify(one.holder, "token t", 2)
        admission.enter(one.holder, may_use_reserve=False)
    token = pair[0].holder.client
    assert token is pair[1].holder.client
    assert (token.name, token.requests, token.connections) == ("token t", 2, 2)
    third = _Connection()
    assert connections.opened(third, "10.0.0.3")
    connections.heard(third)
    with pytest.raises(Overloaded, match=r"token t has too many connections: .*`share` in TRIPTYCH_TOKENS"):
        connections.identify(third.holder, "token t", 2)
    assert third.holder.client.name == "10.0.0.3"
    with pytest.raises(Overloaded, match=r"the limit for one client is 2 \(`share` in TRIPTYCH_TOKENS of TRIPTYCH_REQ"):
        admission.enter(pair[0].holder, may_use_reserve=False)
    for one in pair:
        admission.leave(one.holder)
        connections.identify(one.holder, "", None)
    assert [one.holder.client.name for one in pair] == ["10.0.0.1", "10.0.0.2"]
    for one in (*pair, third):
        connections.lost(one)
    assert connections.clients._by_name == {}
