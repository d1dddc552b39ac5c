"""Attacks on a cluster, and what a bystander notices of them.

    python -m loadtest.attacks                          # every attack in turn, some five minutes
    python -m loadtest.attacks --list                   # their names and targets
    python -m loadtest.attacks --only regex 'bodies-*'  # some of them (names or shell patterns)
    python -m loadtest.attacks --seconds 5              # how long an attack goes on sending (default 10)
    python -m loadtest.attacks --tree ../other          # against the code of another source tree
    python -m loadtest.attacks --scale 0.1              # against a tenth of the data, which loads in seconds
    python -m loadtest.attacks --mixed 10               # ten minutes of mixed load, all attacks in turn beside it

The program starts a cluster of its own, loads it (`loadtest.attacks.data`), and runs each attack in one process and a
bystander in another. The bystander asks a light query, scans a key and appends a record, each 20 times a second, and
opens a connection every second. Everything comes from 127.0.0.1: attacker and bystander cannot be told apart by their
address. A table in Markdown follows: waits and errors of the bystander, memory of the cluster's processes, workers that
were restarted or counted as down, the attacker's answers, and whether the targets are met. The exit code is 1 when one
is missed.

A wait is measured from the time at which the request was due, so that a request behind one that is stuck counts too.
The row `none` is the bystander alone: it shows what the machine itself costs. As root, the cluster and the bystander
get a higher priority than other work on the machine. Memory is the resident memory of all
processes of the cluster together, sampled ten times a second; pages that processes share count in each of them, so
its growth matters, not its height.
"""
