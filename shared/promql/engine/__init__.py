"""Evaluates a tree over a grid of times: from samples to the value at every step, in arrays."""
