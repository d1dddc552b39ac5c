"""Benchmarks: every figure in the documents comes from a program here."""
