"""The attacker: one attack in a process of its own.

`python -m loadtest.attacks.attacker NAME PORT END_S SECONDS` prepares, prints a line, waits for a line on its standard
input, attacks for so many seconds, and prints its `Answers` in JSON when they have come.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from dataclasses import asdict

from loadtest.attacks.catalogue import named
from loadtest.attacks.priority import prefer
from loadtest.attacks.sending import Answers
from loadtest.attacks.target import Target

NICENESS = 5
"""The attacker's own work gives way to that of the cluster and the bystander."""


def main() -> None:
    name, port, end_s, seconds = sys.argv[1:]
    prefer(NICENESS)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    (attack,) = named([name])
    run = attack.prepare(Target(int(port), int(end_s)))
    print("prepared", flush=True)
    if not sys.stdin.readline():
        return
    answers = Answers()
    asyncio.run(run(answers, float(seconds)))
    print(json.dumps(asdict(answers)), flush=True)


if __name__ == "__main__":
    main()
