"""Users and tokens: the page asks for one, once, and keeps it in the memory of the tab only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from loadtest.harness.cluster import Cluster
from tests.cluster.secured import PASSWORD, TOKENS, bearer, hashed, token_lines
from tests.forked_cluster import ForkedCluster
from tests.page.conftest import Tabs
from tests.page.modules import run


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """With a user and tokens, without TLS."""
    directory = tmp_path_factory.mktemp("secured")
    (directory / "web.yml").write_text(f"basic_auth_users:\n  alice: {hashed(PASSWORD)}\n")
    tokens = "".join(token_lines(name, fields) for name, fields in TOKENS.items())
    (directory / "tokens.toml").write_text(tokens)
    files = {"TRIPTYCH_WEB_CONFIG": directory / "web.yml", "TRIPTYCH_TOKENS": directory / "tokens.toml"}
    settings = {name: str(path) for name, path in files.items()}
    running = ForkedCluster(directory, shards=1, workers=1, settings=settings)
    running.authorization = bearer("reader")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def page(tabs: Tabs, secured: Cluster) -> Page:
    tabs.expected = ("401", "403")
    return tabs.open(secured.url)


def dialog(page: Page):  # type: ignore[no-untyped-def]
    return page.get_by_role("dialog", name="Credential")


def ready(page: Page):  # type: ignore[no-untyped-def]
    return page.get_by_role("status").filter(has_text="1 shard ready")


def give_token(page: Page, token: str) -> None:
    field = dialog(page).locator("input[type=password]")
    field.fill(token)
    page.keyboard.press("Enter")


def test_a_token_is_asked_for_and_a_wrong_one_is_asked_for_again(page: Page) -> None:
    expect(dialog(page)).to_contain_text("This server asks for a credential")
    give_token(page, "nobody")
    expect(dialog(page)).to_contain_text("none of this service")
    expect(ready(page)).to_have_count(0)
    give_token(page, bearer("reader").removeprefix("Bearer "))
    expect(ready(page)).to_be_visible()
    expect(dialog(page)).to_have_count(0)


def test_a_user_with_a_password_gets_in_by_keys_alone(page: Page) -> None:
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.type("alice")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    expect(ready(page)).to_be_visible()


def test_many_requests_ask_once_and_all_go_on(page: Page) -> None:
    expect(dialog(page)).to_be_visible()
    many = """
      const { read } = await use("base/api.js");
      window.many = Promise.all(Array.from({ length: 20 }, () => read("api/v1/labels")));
      window.many.catch(() => {});
      await sleep(300);
    """
    run(page, many)
    expect(dialog(page)).to_have_count(1)
    give_token(page, bearer("reader").removeprefix("Bearer "))
    assert run(page, "return (await window.many).length;") == 20
    expect(dialog(page)).to_have_count(0)


def test_the_credential_is_gone_after_a_reload_and_stored_nowhere(page: Page) -> None:
    give_token(page, bearer("reader").removeprefix("Bearer "))
    expect(ready(page)).to_be_visible()
    stored = "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state])"
    assert "Secret" not in page.evaluate(stored)
    page.reload()
    expect(dialog(page)).to_be_visible()


def test_without_a_credential_the_page_says_so_and_does_not_ask_again_by_itself(page: Page) -> None:
    expect(dialog(page)).to_be_visible()
    page.keyboard.press("Escape")
    missing = page.get_by_role("button", name="no credential")
    expect(missing).to_be_visible()
    page.wait_for_timeout(6000)  # longer than until the state is asked for again
    expect(dialog(page)).to_have_count(0)
    missing.click()
    give_token(page, bearer("reader").removeprefix("Bearer "))
    expect(ready(page)).to_be_visible()
    page.get_by_role("button", name="Credential", exact=True).click()
    dialog(page).get_by_role("button", name="Forget the one in use").click()
    expect(missing).to_be_visible()
    expect(dialog(page)).to_have_count(0)


def test_what_no_header_can_carry_is_said_before_it_is_sent(page: Page) -> None:
    dialog(page).locator("input[type=password]").fill("two words")
    expect(dialog(page).get_by_role("alert").filter(has_text="no spaces")).to_be_visible()
    expect(dialog(page).get_by_role("button", name="Use it")).to_be_disabled()


def test_a_role_that_is_missing_is_named(page: Page) -> None:
    give_token(page, bearer("reader").removeprefix("Bearer "))
    expect(ready(page)).to_be_visible()
    code = """
      const { read } = await use("base/api.js");
      try { await read("api/v1/queries"); } catch (error) { return [error.status, error.message, error.advice]; }
    """
    status, message, advice = run(page, code)
    assert status == 403
    assert "the token reader does not have the role admin in all areas" in message
    assert "key at the top right" in advice
