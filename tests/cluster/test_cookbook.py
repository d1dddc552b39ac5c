"""Every snippet of docs/guide/cookbook.md runs, and gives what the page says."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest.harness.cluster import ROOT
from loadtest.harness.ports import free_port

PAGE = (ROOT / "docs" / "guide" / "cookbook.md").read_text()
SNIPPETS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
ADDRESSES = re.compile(r"(localhost|127\.0\.0\.1):9090")
WITHIN_S = 60.0
INSTALLS = ("$ pip install ", "$ docker compose ")


class Reader:
    """Somebody who follows the page in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.names: dict[str, Any] = {}
        self.output = ""
        self._directory = directory
        self._service: subprocess.Popen[bytes] | None = None
        settings = {"TRIPTYCH_URL": f"http://127.0.0.1:{self.port}", "TRIPTYCH_LISTEN": f"127.0.0.1:{self.port}"}
        path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
        self._environment = {**os.environ, **settings, "PATH": path, "PYTHONPATH": str(ROOT), "TRIPTYCH_SHARDS": "2"}

    def does(self, language: str, text: str) -> None:
        text = ADDRESSES.sub(rf"\1:{self.port}", text)
        if language == "yaml":
            name = text.partition("\n")[0].removeprefix("# ")
            (self._directory / name).write_text(text)
        elif language == "python":
            exec(compile(text, "cookbook", "exec"), self.names)
        elif language == "sh" and " serve " in text:
            self._serves(text)
        elif language == "sh":
            command = ["bash", "-euo", "pipefail", "-c", text]
            done = subprocess.run(
                command, cwd=self._directory, env=self._environment, timeout=WITHIN_S, capture_output=True, check=False
            )
            self.output = done.stdout.decode() + done.stderr.decode()
            assert done.returncode == 0, text + self.output
        else:
            assert language == "console" and text.startswith(INSTALLS), text

    def _serves(self, text: str) -> None:
        command = ["bash", "-c", f"exec env {shlex.join(shlex.split(text))}"]
        with open(self._directory / "service.log", "wb") as log:
            self._service = subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdout=log, stderr=log
            )
        give_up = time.monotonic() + WITHIN_S
        while not self._is_ready():
            assert self._service.poll() is None and time.monotonic() < give_up, self.log()
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def log(self) -> str:
        return (self._directory / "service.log").read_text()[-4000:]

    def stop(self) -> None:
        if "client" in self.names:
            self.names["client"].close()
        if self._service is not None:
            self._service.send_signal(signal.SIGINT)
            self._service.wait(WITHIN_S)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    following = Reader(tmp_path_factory.mktemp("cookbook"))
    yield following
    following.stop()


@pytest.mark.timeout(300)
def test_the_snippets_do_what_the_page_says(reader: Reader) -> None:
    assert [language for language, _ in SNIPPETS].count("python") == 3
    outputs = []
    for language, text in SNIPPETS:
        reader.does(language, text)
        outputs.append(reader.output)
    names = reader.names
    assert names["passages"]("Can I return boots that are too small?", 1)[0][0] == "returns"
    assert names["passages"]("Which days is the store shut?", 1)[0][0] == "opening"
    assert "[shipping] Orders that are paid before noon" in names["prompt"]("When do parcels leave the warehouse?")
    assert names["history"] == ["created", "paid"]
    assert sorted(names["seen"]) == [("order/17", "created"), ("order/17", "paid"), ("order/18", "created")]
    orders = [what for order, what in names["seen"] if order == "order/17"]
    assert orders == ["created", "paid"]
    assert outputs[-1].count('"ann"') >= 2 and '"ben"' not in outputs[-1]
