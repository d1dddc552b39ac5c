"""Query parameters that an endpoint of the log or of the vectors does not know."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.api import strict
from coordinator.app import build
from coordinator.http.responses import MESSAGE_AREAS
from shared.errors import BadData
from shared.settings import Settings


def test_every_endpoint_of_the_log_and_the_vectors_declares_its_parameters() -> None:
    app = build(cast(Any, SimpleNamespace(settings=Settings())))
    routes = {(str(r.resource.canonical), r.handler) for r in app.router.routes() if r.resource is not None}
    strict_routes = {(path, handler) for path, handler in routes if path.startswith(MESSAGE_AREAS)}
    assert len(strict_routes) >= 18
    assert [path for path, handler in strict_routes if strict.known_to(handler) is None] == []
    assert [path for path, handler in routes - strict_routes if strict.known_to(handler) is not None] == []


def test_an_unknown_parameter_is_named_with_the_nearest_known_one() -> None:
    with pytest.raises(BadData, match=r"^parameter 'starts_seq' is unknown here; did you mean 'start_seq'\?$"):
        strict.require_known(["key", "starts_seq"], ("key", "start_seq", "startSeq", "end_seq"))


def test_without_a_near_one_the_known_parameters_are_listed() -> None:
    with pytest.raises(BadData, match=r"^parameter 'x' is unknown here; known are end_seq, key$"):
        strict.require_known(["x"], ("key", "end_seq"))
    with pytest.raises(BadData, match="this endpoint has no parameters"):
        strict.require_known(["x"], ())


def test_a_name_of_any_length_is_refused_at_once_and_shown_cut() -> None:
    with pytest.raises(BadData) as refused:
        strict.require_known(["k" * 60_000], ("key", "k"))
    assert str(refused.value) == f"parameter {'k' * strict.NAME_LENGTH_MAX!r} is unknown here; known are k, key"
    strict.require_known(["key"], ("key", "k"))
