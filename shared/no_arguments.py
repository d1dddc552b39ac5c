"""Help for programs that take no arguments."""

from __future__ import annotations

import sys


def require(program: str, what: str) -> None:
    """If there are arguments, print a help text and exit: with code 0 for --help, otherwise 2."""
    arguments = sys.argv[1:]
    if not arguments:
        return
    text = (
        f"{program} starts {what}; it takes no arguments. Settings are environment variables, TRIPTYCH_…, or a file "
        "that TRIPTYCH_CONFIG names: see docs/operations.md. `triptych serve` starts the whole service, `triptych "
        "--help` lists the other commands.\n"
    )
    if set(arguments) <= {"-h", "--help"}:
        sys.stdout.write(text)
        sys.exit(0)
    sys.stderr.write(f"{program}: unknown argument {arguments[0]!r}. {text}")
    sys.exit(2)
