"""Health and readiness are told without aiohttp as with it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from coordinator.api import status
from coordinator.direct import states as direct_states
from tests.unit.direct_service import Service, get, post

HEALTHY, READY = "/-/healthy", "/-/ready"
USUAL = ("Host: localhost", "Accept: */*", "X-Other: of aiohttp")


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Service]:
    service = Service(HEALTHY, [route for route in status.ROUTES if route.path in (HEALTHY, READY)])
    service.context.links.unready = dict  # type: ignore[method-assign]
    service.count(monkeypatch, direct_states._StateWork)
    await service.start()
    yield service
    await service.stop()


@pytest.mark.parametrize(("path", "text"), [(HEALTHY, b"Triptych is healthy.\n"), (READY, b"Triptych is ready.\n")])
async def test_both_ways_give_the_same_answer(service: Service, path: str, text: bytes) -> None:
    service.path = path
    status, headers, body = await service.both(get(path, USUAL), get(path))
    assert (status, headers["Content-Type"], body) == (200, "text/plain; charset=utf-8", text)
    assert service.served(200, "GET") == 3
    await service.until(lambda: service.is_at_rest)


async def test_what_is_missing_is_told_by_aiohttp(service: Service) -> None:
    service.context.links.unready = lambda: {2: "loading"}  # type: ignore[method-assign]
    client = await service.client()
    assert (await client.ask(get(READY)))[::2] == (503, b"Triptych is not ready.\nshard 2: loading\n")
    assert (await client.ask(get(HEALTHY)))[0] == 200
    assert service.direct == 1


async def test_other_methods_are_refused_by_aiohttp(service: Service) -> None:
    client = await service.client()
    assert (await client.ask(post(HEALTHY, USUAL[:2], b"")))[0] == 405
    assert service.direct == 0


async def test_health_is_told_while_no_other_request_has_a_place(service: Service) -> None:
    admission = service.context.admission
    admission.requests = admission._ordinary_max
    client = await service.client()
    assert (await client.ask(get(HEALTHY)))[0] == 200
    assert (service.direct, admission.requests) == (1, admission._ordinary_max)


@pytest.mark.parametrize(("query", "status"), [("x=%zz", 400), ("x=%41", 200)])
async def test_percent_escapes_are_read_by_aiohttp(service: Service, query: str, status: int) -> None:
    client = await service.client()
    for headers in (USUAL, USUAL[:2]):
        assert (await client.ask(get(f"{HEALTHY}?{query}", headers)))[0] == status
        client = await service.client()
    assert service.direct == 0
