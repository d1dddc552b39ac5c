"""A member of a consumer group over HTTP, for tests."""

from __future__ import annotations

import base64
import http.client
import json
import time
from dataclasses import dataclass, field
from typing import Any

from loadtest.harness.cluster import Cluster

RETRY_WITHIN_S = 60.0


@dataclass
class Consumer:
    """Joins when it is made. `records`: (key, value) of what it was given, without those that it must read again."""

    cluster: Cluster
    group: str
    member: str
    options: dict[str, Any] = field(default_factory=dict)
    generation: int = -1

    def __post_init__(self) -> None:
        status, body = self.act("join", **self.options)
        assert status == 200, body
        self.joined = body
        self.generation = body["generation"]

    def act(self, name: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        who = {"member": self.member} | ({"generation": self.generation} if name != "join" else {})
        answer = self.cluster.post_json(f"/api/v1/log/groups/{self.group}/{name}", {**who, **fields})
        return answer.status, answer.json()

    def patiently(self, name: str, **fields: Any) -> tuple[int, dict[str, Any]]:
        """As `act`, again while the cluster is away."""
        give_up = time.monotonic() + RETRY_WITHIN_S
        while True:
            try:
                status, body = self.act(name, **fields)
                if status != 503:
                    return status, body
            except (OSError, http.client.HTTPException, json.JSONDecodeError):
                status, body = 0, {}
            assert time.monotonic() < give_up, (status, body)
            time.sleep(0.05)

    def poll(self, **fields: Any) -> dict[str, Any]:
        status, body = self.act("poll", **fields)
        assert status == 200, body
        return body

    def commit(self, upto: int) -> None:
        status, body = self.act("commit", upTo=upto)
        assert status == 200, body

    def go_on(self) -> None:
        """Take the new generation from the refusal of the old one."""
        status, body = self.act("poll", max=0)
        if status == 409:
            self.generation = body["generation"]


def pairs(answer: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(base64.b64decode(r["key"]), base64.b64decode(r["value"])) for r in answer["records"]]


def describe(cluster: Cluster, group: str, **parameters: str) -> dict[str, Any]:
    answer = cluster.get(f"/api/v1/log/groups/{group}", **parameters)
    assert answer.status == 200, answer.body
    return answer.json()
