"""The fault harness: a real cluster under mixed load and faults, beside a record of what it has acknowledged.

`python -m tests.chaos --seed S --seconds N --scenario NAME`; `make chaos` runs all scenarios for ten minutes.
"""
