"""How long a tab does not answer: its longest task."""

from __future__ import annotations

from playwright.sync_api import Page

_WATCH = """() => {
  window.tasks = [];
  const keep = (list) => window.tasks.push(...list.getEntries().map((one) => one.duration));
  new PerformanceObserver(keep).observe({ type: "longtask" });
}"""
_LONGEST = "() => new Promise((done) => setTimeout(() => done(Math.max(0, ...window.tasks.splice(0))), 300))"


class Tasks:
    """Watches the tasks of a tab from now on."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._session = page.context.new_cdp_session(page)
        self._session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.evaluate(_WATCH)
        self._before_ms = self._processor_ms()

    def longest_ms(self) -> float:
        """Of the longest task since the last call: how long it took or, if that is less, the CPU time of all
        tasks, since a task also takes long when the machine is busy with other work."""
        took_ms = float(self._page.evaluate(_LONGEST))
        return min(took_ms, self.spent_ms())

    def spent_ms(self) -> float:
        """The CPU time of all tasks since the last call."""
        before_ms, self._before_ms = self._before_ms, self._processor_ms()
        return self._before_ms - before_ms

    def _processor_ms(self) -> float:
        metrics = self._session.send("Performance.getMetrics")["metrics"]
        return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration") * 1000
