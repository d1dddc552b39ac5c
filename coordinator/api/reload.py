"""`/-/reload`: reads the configuration file again, as Prometheus does."""

from __future__ import annotations

from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.http.bodies import read_body
from shared.errors import ConfigError, Internal, NotFound

BODY_BYTES_MAX = 1 << 10
"""The answer has no body."""


async def reload(request: web.Request) -> web.Response:
    """200 once the file is in force. Raises NotFound without a file. Raises Internal (500, as Prometheus answers) when
    the file cannot be used; then the earlier configuration stays in force."""
    await read_body(request, BODY_BYTES_MAX)
    config_file = request.app[CONTEXT].config_file
    if config_file.path is None:
        raise NotFound("there is no configuration file to read again; TRIPTYCH_PROMETHEUS_CONFIG names one")
    try:
        await config_file.load()
    except ConfigError as error:
        raise Internal(f"failed to reload config: {error}").because("not_executable") from None
    return web.Response()


ROUTES = [web.post("/-/reload", reload), web.put("/-/reload", reload)]
