"""The command `triptych` and the list of its sub-commands.

Each sub-command is one line of `SECTIONS`: its name, the module and name of its click command, and what it does. The
module is imported when the sub-command is used, so that `triptych --help` and every command start fast. A command
imports everything except click and the HTTP client inside its function.
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
    """The commands of one subject. `commands`: name → (module:attribute, what it does)."""

    title: str
    example: str
    commands: dict[str, tuple[str, str]]


SECTIONS = (
    Section(
        "Run the service",
        "triptych serve --data /srv/triptych",
        {
            "serve": ("coordinator.commands.serve:serve", "start the service"),
            "warm": ("coordinator.commands.warm:warm", "compile kernels before the first start of a version"),
            "token": ("coordinator.commands.tokens:token", "create a bearer token"),
        },
    ),
    Section(
        "Maintain the service",
        "triptych doctor --url http://127.0.0.1:9090",
        {
            "status": ("coordinator.commands.status:status", "show shards and workers of a running cluster"),
            "doctor": ("coordinator.commands.doctor:doctor", "report what is wrong or will cause trouble"),
            "check": ("coordinator.commands.check:check", "report damage in a data directory"),
            "backup": ("coordinator.commands.backup:backup", "back up all data of a running cluster"),
            "restore": ("coordinator.commands.backup:restore", "restore a backup to a new data directory"),
        },
    ),
    Section(
        "Metrics",
        "triptych query 'rate(http_requests_total[5m])' --start -1h",
        {
            "query": ("coordinator.commands.query:query", "evaluate PromQL, at one time or over a range"),
            "write": ("coordinator.commands.write:write", "store samples from standard input"),
            "rules": ("coordinator.commands.rules:rules", "check and test rule files"),
        },
    ),
    Section(
        "Log",
        "triptych log append --key orders < orders.txt",
        {"log": ("coordinator.commands.log:log", "append to, read and follow the log")},
    ),
    Section(
        "Vectors",
        "triptych vector search --text 'quick fox' --collection notes",
        {"vector": ("coordinator.commands.vector:vector", "manage, fill and search collections")},
    ),
    Section(
        "Files",
        "triptych import metrics snapshots/20261123T120000Z-5e1f",
        {
            "import": ("coordinator.commands.transfer:import_", "import files and Prometheus blocks"),
            "export": ("coordinator.commands.transfer:export", "export samples, records or vectors to a file"),
        },
    ),
    Section(
        "Shell",
        'eval "$(triptych completion bash)"',
        {"completion": ("coordinator.commands.completion:completion", "print the completion script for a shell")},
    ),
)


class Commands(click.Group):
    """A group that imports a command when it is used."""

    def __init__(self, sections: tuple[Section, ...], **settings: Any) -> None:
        self._sections = sections
        self._targets = {name: target for section in sections for name, (target, _) in section.commands.items()}
        self._texts = {name: text for section in sections for name, (_, text) in section.commands.items()}
        # For a misspelt name, click suggests the most similar of these.
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
        """Completes names without importing the commands, which would delay the key press."""
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

    `triptych serve` starts the service. The other commands use its HTTP interface, by default at http://127.0.0.1:9090;
    --url or TRIPTYCH_URL names another address. `triptych COMMAND --help` describes each command.""",
    epilog="""Exit codes: 0 success, 1 failure, 2 wrong arguments, 3 incomplete (standard error names what is missing),
    130 interrupted.""",
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
