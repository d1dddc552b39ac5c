"""Requests from the coordinator to its workers: which workers are connected, with which shards, and the calls that fan
out to them."""
