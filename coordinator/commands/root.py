"""The command `triptych` and the list of its sub-commands.

A sub-command is one line of `SECTIONS`: its name, the module and the name of its click command, and what it does. The
module is imported when the sub-command is used, so that `triptych --help` and every other command start fast: what a
command needs beyond click and the HTTP client is imported inside its function.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

PROGRAM = "triptych"
COMPLETE_VARIABLE = "_TRIPTYCH_COMPLETE"
HELP_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Section:
    """Commands of one subject. `commands`: by name, (module:attribute, what it does)."""

    title: str
    example: str
    commands: dict[str, tuple[str, str]]


SECTIONS = (
    Section(
        "Run the service",
        "triptych serve --data /srv/triptych",
        {
            "serve": ("coordinator.commands.serve:serve", "start the service"),
            "warm": ("coordinator.commands.warm:warm", "prepare the first start of a version"),
            "token": ("coordinator.commands.tokens:token", "make a bearer token"),
        },
    ),
    Section(
        "Look after it",
        "triptych doctor --url http://127.0.0.1:9090",
        {
            "status": ("coordinator.commands.status:status", "show shards and workers of a running cluster"),
            "doctor": ("coordinator.commands.doctor:doctor", "look for what causes trouble"),
            "check": ("coordinator.commands.check:check", "look for damage in a data directory"),
            "backup": ("coordinator.commands.backup:backup", "copy all data of a running cluster"),
            "restore": ("coordinator.commands.backup:restore", "write a backup into a new data directory"),
        },
    ),
    Section(
        "Metrics",
        "triptych query 'rate(http_requests_total[5m])' --start -1h",
        {
            "query": ("coordinator.commands.query:query", "evaluate PromQL, at one time or over a range"),
            "write": ("coordinator.commands.write:write", "store samples of the standard input"),
            "rules": ("coordinator.commands.rules:rules", "check and test files of rules"),
        },
    ),
    Section(
        "Log",
        "triptych log append --key orders < orders.txt",
        {"log": ("coordinator.commands.log:log", "append to the log, read and follow it")},
    ),
    Section(
        "Vectors",
        "triptych vector search --text 'quick fox' --collection notes",
        {"vector": ("coordinator.commands.vector:vector", "collections, upserts and searches")},
    ),
    Section(
        "Files",
        "triptych import metrics snapshots/20261123T120000Z-5e1f",
        {
            "import": ("coordinator.commands.transfer:import_", "bring files and Prometheus's blocks in"),
            "export": ("coordinator.commands.transfer:export", "write samples, records or vectors to a file"),
        },
    ),
    Section(
        "The command itself",
        'eval "$(triptych completion bash)"',
        {"completion": ("coordinator.commands.completion:completion", "print the completion for a shell")},
    ),
)


class Commands(click.Group):
    """A group whose commands are imported when they are used."""

    def __init__(self, sections: tuple[Section, ...], **settings: Any) -> None:
        self._sections = sections
        self._targets = {name: target for section in sections for name, (target, _) in section.commands.items()}
        self._texts = {name: text for section in sections for name, (_, text) in section.commands.items()}
        # click names the nearest of these where a name is wrong.
        placeholders = {name: click.Command(name, help=text) for name, text in self._texts.items()}
        super().__init__(commands=placeholders, **settings)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._targets)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        target = self._targets.get(cmd_name)
        if target is None:
            return None
        module, _, attribute = target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command), target
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Imports none of them, which would take longer than a key."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=text) for name, text in self._texts.items() if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for section in self._sections:
            with formatter.section(section.title):
                rows = [(name, text) for name, (_, text) in section.commands.items()]
                formatter.write_dl([*rows, ("", f"$ {section.example}")], col_max=12)


def _print_version(ctx: click.Context, parameter: click.Parameter, is_asked: bool) -> None:
    if is_asked:
        from shared.version import version

        click.echo(f"{PROGRAM} {version()}")
        ctx.exit()


root = Commands(
    SECTIONS,
    name=PROGRAM,
    help="""Metrics, logs and vectors in one service.

    `triptych serve` starts it, and the other commands use it through its HTTP interface: by default at
    http://127.0.0.1:9090, else where TRIPTYCH_URL or --url says. `triptych COMMAND --help` says more of each.""",
    epilog="""Exit codes: 0 done, 1 failed, 2 wrongly used, 3 incomplete (the error stream says what is missing), 130
    interrupted.""",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": HELP_COLUMNS},
    no_args_is_help=True,
    params=[
        click.Option(
            ["--version"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_print_version,
            help="Show the version and exit.",
        )
    ],
)
