"""Calls from the coordinator to its workers: which workers are connected, which shards each has, and method calls that
fan out to them."""
