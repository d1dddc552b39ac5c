"""`triptych completion`: the script with which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import shell_complete

from coordinator.commands.root import COMPLETE_VARIABLE, PROGRAM


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script with which a shell completes commands and options.

    \b
    bash   eval "$(triptych completion bash)"    in ~/.bashrc
    zsh    eval "$(triptych completion zsh)"     in ~/.zshrc
    fish   triptych completion fish > ~/.config/fish/completions/triptych.fish
    """
    root = click.get_current_context().find_root().command
    return shell_complete(root, {}, PROGRAM, COMPLETE_VARIABLE, f"{shell}_source")
