"""Durable data of a worker: the write-ahead log of the process, the rows of each shard, and objects."""
