"""Who a request comes from: what is compared, what is remembered, and how much may wait."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from collections.abc import Iterator

import bcrypt
import pytest

from coordinator.access import credentials as module
from coordinator.access import passwords
from coordinator.access.credentials import Credentials, Rate
from coordinator.access.passwords import WAITING_MAX, WAITING_OF_CLIENT_MAX, Comparisons
from coordinator.access.roles import EVERYTHING, Role
from coordinator.access.tokens import Token
from shared.errors import Overloaded, Unauthorized

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
TOKENS = {"t": Token(HASH, metrics="read", share=10)}


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


class Counted(Comparisons):
    """Counts comparisons; while `gate` is not set, they wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def begin(self, client: str, secret: bytes, hashed: str) -> asyncio.Future[bool]:
        begun = super().begin(client, secret, hashed)
        self.seen.append(hashed)
        return begun


@pytest.fixture
def comparisons(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counted = Counted()
    compare = passwords.is_match
    monkeypatch.setattr(passwords, "is_match", lambda *arguments: counted.gate.wait(30) and compare(*arguments))
    yield counted
    counted.gate.set()
    counted.stop()


@pytest.fixture
def known(comparisons: Counted) -> Credentials:
    return Credentials({"u": HASH}, TOKENS, comparisons)


async def test_users_do_everything_and_tokens_what_their_roles_say(known: Credentials) -> None:
    user = await known.compared(basic("u", "secret"), "here")
    assert (user.roles, user.client) == (EVERYTHING, "")
    token = await known.compared("bearer  triptych.t.secret", "here")
    assert (token.roles, token.client, token.share) == ((Role.READ, Role.NONE, Role.NONE), "token t", 10)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Basic",
        "Basic !!!",
        "Basic " + b64encode(b"nocolon").decode(),
        "Digest x",
        "Bearer secret",
        "Bearer triptych.t",
        "Bearer " + "x" * 1100,
        "Basic é",
    ],
)
async def test_a_header_that_cannot_be_read_costs_no_comparison(
    header: str | None, known: Credentials, comparisons: Counted
) -> None:
    with pytest.raises(Unauthorized):
        await known.compared(header, "here")
    assert comparisons.seen == []


@pytest.mark.parametrize(
    "header",
    [
        basic("u", "wrong"),
        basic("u", ""),
        basic("u", "secret\0"),
        basic("nobody", "secret"),
        basic("t", "secret"),
        "Bearer triptych.u.secret",
        "Bearer triptych.t.wrong",
        "Bearer triptych.nobody.secret",
        "Bearer triptych.t.\udcff",
    ],
)
async def test_a_wrong_credential_costs_one_comparison_whether_its_name_is_known_or_not(
    header: str, known: Credentials, comparisons: Counted
) -> None:
    for _ in range(3):
        with pytest.raises(Unauthorized):
            await known.compared(header, "here")
        assert known.remembered(header) is None
    assert len(comparisons.seen) == 1


async def test_a_right_credential_is_remembered_until_it_is_not_used(
    known: Credentials, comparisons: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = basic("u", "secret")
    assert known.remembered(header) is None
    await known.compared(header, "here")
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    known._remembered = {digest: (grant, 0.0) for digest, (grant, _) in known._remembered.items()}
    for _ in range(3):
        now[0] += module.REMEMBERED_S - 1
        assert known.remembered(header) is not None
    now[0] += module.REMEMBERED_S + 1
    assert known.remembered(header) is None
    assert Credentials({"u": HASH}, {}, comparisons).remembered(header) is None


async def test_many_requests_with_a_new_credential_cost_one_comparison(
    known: Credentials, comparisons: Counted
) -> None:
    comparisons.gate.clear()
    requests = [asyncio.create_task(known.compared("Bearer triptych.t.secret", "here")) for _ in range(100)]
    await asyncio.sleep(0.01)
    requests[0].cancel()  # its client went away
    comparisons.gate.set()
    grants = await asyncio.gather(*requests[1:])
    assert {grant.name for grant in grants} == {"token t"}
    assert len(comparisons.seen) == 1


async def test_few_comparisons_wait_and_few_of_one_client(known: Credentials, comparisons: Counted) -> None:
    comparisons.gate.clear()
    waiting = []
    for number in range(WAITING_OF_CLIENT_MAX):
        waiting.append(asyncio.create_task(known.compared(basic("u", str(number)), "attacker")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="of attacker are being checked, the limit is 4"):
        await known.compared(basic("u", "more"), "attacker")
    for number in range(WAITING_MAX - WAITING_OF_CLIENT_MAX - 1):
        waiting.append(asyncio.create_task(known.compared(basic("u", f"x{number}"), f"other {number}")))
    victim = asyncio.create_task(known.compared(basic("u", "secret"), "victim"))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="the limit is 32"):
        await known.compared(basic("u", "y"), "late")
    comparisons.gate.set()
    assert (await victim).name == "user u"
    assert {type(outcome) for outcome in await asyncio.gather(*waiting, return_exceptions=True)} == {Unauthorized}
    assert (await known.compared("Bearer triptych.t.secret", "attacker")).name == "token t"


async def test_what_is_remembered_is_bounded(known: Credentials, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRONG_MAX", 3)
    for number in range(6):
        with pytest.raises(Unauthorized):
            await known.compared(basic("u", str(number)), "here")
    assert len(known._wrong) == 3


async def test_a_password_counts_up_to_72_bytes_as_with_prometheus(comparisons: Counted) -> None:
    long = "p" * 72
    known = Credentials({"u": bcrypt.hashpw(long.encode(), bcrypt.gensalt(4)).decode()}, {}, comparisons)
    assert (await known.compared(basic("u", long + "more"), "here")).name == "user u"


async def test_unknown_names_are_compared_with_hashes_of_known_ones(comparisons: Counted) -> None:
    """Their costs are distributed as those of known names; the same name always costs the same."""
    costly = bcrypt.hashpw(b"x", bcrypt.gensalt(5)).decode()
    known = Credentials({"u": HASH, "v": costly}, {}, comparisons)
    for number in range(20):
        for password in ("1", "2"):
            with pytest.raises(Unauthorized):
                await known.compared(basic(f"nobody {number}", password), "here")
    assert set(comparisons.seen) == {HASH, costly}
    assert comparisons.seen[::2] == comparisons.seen[1::2]


def test_a_rate_lets_a_burst_in_and_then_so_many_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    rate = Rate(2)
    assert [rate.take() for _ in range(3)] == [True, True, False]
    now[0] += 0.5
    assert [rate.take() for _ in range(2)] == [True, False]
    now[0] += 100
    assert [rate.take() for _ in range(3)] == [True, True, False]
