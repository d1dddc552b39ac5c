"""Fuzzing: every decoder and endpoint is fed inputs that nobody would write, by the million.

`python -m tests.fuzz` runs campaigns, each in a process of its own: one target, fed with bytes that libFuzzer mutates
along the branches they reach (atheris), or with values of a strategy (hypothesis) whose choices libFuzzer mutates. A
failure is an exception that the target does not declare, an input that takes longer than `SLOW_S`, memory beyond
`MEMORY_BYTES_MAX`, or the end of the process. `corpus/` holds what once failed; `test_corpus` replays it.
"""
