"""The command `triptych`. `coordinator.commands.root` lists its sub-commands; each has a module in that package."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click
from click.shell_completion import shell_complete

from coordinator.commands.root import COMPLETE_VARIABLE, PROGRAM, root

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command. Returns its exit code: 0 for success, 1 for an error (one line on standard error), 2 for wrong
    arguments, 3 if the output or the work is incomplete (standard error names what is missing), 130 if interrupted.
    `check` has exit codes of its own (`coordinator.check`)."""
    try:
        code = _run(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output, such as head, has closed the pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        sys.stderr.write(f"triptych: {_reason(error)}\n")
        return 1
    return code


def _reason(error: OSError) -> str:
    """The file and the reason, without the number that Python prints before it."""
    if error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def _run(argv: Sequence[str]) -> int:
    # click's own `main` would turn a closed pipe into exit code 1.
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        return shell_complete(root, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    with root.make_context(PROGRAM, list(argv)) as context:
        return root.invoke(context) or 0


if __name__ == "__main__":
    sys.exit(main())
