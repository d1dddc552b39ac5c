"""Handshakes: whose turn it is, and what becomes of those that fail."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import trustme

from coordinator.access.tls import Tls, TlsMaterial
from coordinator.access.web_config import TlsServerConfig
from coordinator.http.listening import Listener
from coordinator.limits import handshakes
from coordinator.limits.handshakes import Handshakes, Turns

AUTHORITY = trustme.CA()


class Greeter(asyncio.Protocol):
    """Greets whoever has finished a handshake; `events` has what happened to all connections."""

    events: list[str]
    give_ups: list[Callable[[], object]]
    has_room = True

    def accepted(self, address: str, give_up: Callable[[], object]) -> bool:
        self.events.append(f"accepted {address}")
        self.give_ups.append(give_up)
        return self.has_room

    def gave_up(self) -> None:
        self.events.append("gave up")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.events.append("made")
        transport.write(b"hello")
        transport.close()


def material(**fields: object) -> TlsMaterial:
    certificate = AUTHORITY.issue_cert("localhost")
    pem = b"".join(one.bytes() for one in certificate.cert_chain_pems)
    return TlsMaterial(TlsServerConfig(**fields), pem, certificate.private_key_pem.bytes(), b"")  # type: ignore[arg-type]


@pytest.fixture
async def port() -> AsyncIterator[int]:
    Greeter.events, Greeter.give_ups, Greeter.has_room = [], [], True
    listener = Listener(Greeter, Handshakes(Tls(material()), 5.0))
    yield await listener.open("127.0.0.1", 0, 16)
    listener.close()


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    AUTHORITY.configure_trust(context)
    return context


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.005)


async def test_a_client_is_greeted_after_its_handshake(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(), server_hostname="localhost")
    assert await reader.read() == b"hello"
    writer.close()
    assert Greeter.events == ["accepted 127.0.0.1", "made"]


@pytest.mark.parametrize("sent", [b"", b"\x16", b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n"])
async def test_what_is_no_handshake_is_counted_and_ends(port: int, sent: bytes) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await until(lambda: bool(Greeter.events))
    writer.close()
    await until(lambda: Greeter.events[1:] == ["gave up"])


@pytest.mark.parametrize("sent", [b"", b"\x16"])
async def test_a_handshake_that_must_make_room_is_closed(port: int, sent: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    await until(lambda: bool(Greeter.events))
    await asyncio.sleep(0.05)
    Greeter.give_ups[0]()
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()
    assert Greeter.events[1:] == ["gave up"]


async def test_a_connection_without_room_is_closed_before_its_handshake(port: int) -> None:
    Greeter.has_room = False
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    writer.close()


async def test_addresses_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "TURN_S", 0.0)
    turns, order = Turns(), []
    here, there = socket.socketpair()

    async def wait(address: str) -> None:
        await turns.wait(address, here)
        order.append(address)

    flood = [asyncio.create_task(wait("flood")) for _ in range(50)]
    await asyncio.sleep(0)
    flood[1].cancel()
    others = [asyncio.create_task(wait(f"other {number}")) for number in range(3)]
    await asyncio.gather(*others, *flood, return_exceptions=True)
    assert len(order) == 52
    assert max(order.index(f"other {number}") for number in range(3)) < 8
    await asyncio.wait_for(turns.wait("flood", here), 1)
    here.close()
    there.close()


async def test_clients_that_have_gone_take_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "TURN_S", 0.2)
    turns = Turns()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        clients = [socket.create_connection(listening.getsockname()) for _ in range(20)]
        accepted = [listening.accept()[0] for _ in clients]
        await turns.wait("a", accepted[0])
        waiting = [asyncio.create_task(turns.wait("a", one)) for one in accepted[1:]]
        for client in clients[:-1]:
            client.sendall(b"hello")
            client.close()
        async with asyncio.timeout(1):
            await waiting[-1]
        assert {type(one) for one in await asyncio.gather(*waiting[:-1], return_exceptions=True)} == {
            ConnectionResetError
        }
        for one in (*clients, *accepted):
            one.close()


def test_only_another_policy_makes_a_new_context() -> None:
    tls = Tls(material())
    before = tls.context
    tls.renew(material())
    assert tls.context is before
    tls.renew(material(min_version="TLS13"))
    assert tls.context is not before
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_3


@pytest.mark.parametrize(
    ("allowed", "names", "is_let_in"),
    [
        (None, (), True),
        ((), (("DNS", "a"),), False),
        (("a",), (("DNS", "b"), ("DNS", "a")), True),
        (("a",), (("DNS", "b"),), False),
        (("a",), (), False),
        (("2001:db8::1",), (("IP Address", "2001:DB8:0:0:0:0:0:1"),), True),
        (("x@y.z", "spiffe://a/b"), (("URI", "spiffe://a/b"),), True),
        (("a",), (("othername", "a"),), False),
    ],
)
def test_names_of_certificates_are_compared_as_they_are(
    allowed: tuple[str, ...] | None, names: tuple[tuple[str, str], ...], is_let_in: bool
) -> None:
    fields = {} if allowed is None else {"client_allowed_sans": allowed}
    assert (Tls(material(**fields)).refusal({"subjectAltName": names}) == "") is is_let_in


def test_a_certificate_and_a_key_that_do_not_fit_are_refused_by_name() -> None:
    one, other = material(), material()
    for certificate, key in ((one.certificate, other.key), (b"", one.key), (one.certificate, b"")):
        with pytest.raises(Exception, match="cert_file"):
            Tls(TlsMaterial(TlsServerConfig(), certificate, key, b""))
    with pytest.raises(Exception, match="client_ca_file"):
        config = TlsServerConfig(client_auth_type="RequireAndVerifyClientCert")
        Tls(TlsMaterial(config, one.certificate, one.key, b"nothing"))


def test_old_versions_and_chosen_ciphers_are_used(tmp_path: Path) -> None:
    server = Tls(
        material(min_version="TLS12", max_version="TLS12", cipher_suites=("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",))
    ).context
    plain = socket.socketpair()
    assert {one["name"] for one in server.get_ciphers() if one["protocol"] == "TLSv1.2"} == {
        "ECDHE-ECDSA-AES256-GCM-SHA384"
    }
    for one in plain:
        one.close()
    assert Tls(material(min_version="TLS10")).context.minimum_version == ssl.TLSVersion.TLSv1
