"""Runs code in a tab that uses the page's own modules."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page

_IMPORT = """
async (given) => {
  const base = document.querySelector("script[type=module]").src.replace(/main\\.js$/, "");
  const use = (path) => import(base + path);
  const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  %s
}
"""


def run(page: Page, code: str, given: Any = None) -> Any:
    """What the code returns. It has `use(path)`, which gives a module ("base/api.js"), `sleep(ms)` and `given`."""
    return page.evaluate(_IMPORT % code, given)
