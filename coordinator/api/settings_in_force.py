"""The settings in force: in Prometheus's formats of flags and configuration, and with the meaning of each setting."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import orjson
from aiohttp import web

from coordinator.context import CONTEXT
from coordinator.http.responses import success
from shared.setting_values import as_text
from shared.settings import Settings, variables
from shared.urls import without_secrets


async def listed(request: web.Request) -> web.Response:
    """Each setting with its variable, value, default and meaning."""
    return success({"settings": in_force(request.app[CONTEXT].settings)})


async def flags(request: web.Request) -> web.Response:
    """Name → value, as text."""
    return success({one["name"]: one["value"] for one in in_force(request.app[CONTEXT].settings)})


async def configuration(request: web.Request) -> web.Response:
    """The configuration file in force; without one, all settings as one document. A text in JSON is a text in YAML,
    too."""
    config_file = request.app[CONTEXT].config_file
    if config_file.path is not None:
        return success({"yaml": await asyncio.to_thread(config_file.in_force.shown)})
    lines = [f"{one['name']}: {_yaml(one['value'])}\n" for one in in_force(request.app[CONTEXT].settings)]
    return success({"yaml": "".join(lines)})


def in_force(settings: Settings) -> list[dict[str, Any]]:
    """The facts about each setting, in the order of the documentation. Values that may contain secrets are partly
    hidden."""
    usual_shards = dataclasses.replace(settings, shards=0).shard_count()  # the number of the data directory is in force
    rows = []
    for field, variable in zip(dataclasses.fields(settings), variables(), strict=True):
        value = getattr(settings, field.name)
        rows.append(
            {
                "name": variable.removeprefix("TRIPTYCH_").lower(),
                "variable": variable,
                "value": without_secrets(as_text(field.name, value)),
                "default": as_text(field.name, field.default),
                "isDefault": value == field.default or (field.name, value) == ("shards", usual_shards),
                "meaning": field.metadata["doc"],
            }
        )
    return rows


def _yaml(text: str) -> str:
    return text if text in ("true", "false") or text.isdigit() else orjson.dumps(text).decode()


ROUTES: list[web.RouteDef] = [
    web.get("/api/v1/status/settings", listed),
    web.get("/api/v1/status/flags", flags),
    web.get("/api/v1/status/config", configuration),
]
