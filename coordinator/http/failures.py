"""Turns errors into responses with the envelope of their area, counts them, and logs those that an operator must
see."""

from __future__ import annotations

import logging

from aiohttp import web

from coordinator.context import Context
from coordinator.http.responses import error_answer
from shared import errors
from shared.errors import TriptychError
from shared.telemetry import event


def refusal(context: Context, path: str, error: TriptychError) -> web.Response:
    """The response to a refused request."""
    context.telemetry.refuse(error)
    is_counted = isinstance(error, errors.Overloaded) and context.pressure.is_on
    if error.status >= 500 and not is_counted:  # for an overload, only its begin and end are logged
        event(logging.WARNING, "request refused", path=path, status=error.status, why=error)
    return error_answer(path, error)


def failure(method: str, path: str) -> web.Response:
    """The response to a request that failed because of a defect. Must be called while the exception is being
    handled."""
    event(logging.ERROR, "request failed", trace=True, method=method, path=path)
    return error_answer(path, errors.Internal("an internal error; the coordinator's log has the reason"))
