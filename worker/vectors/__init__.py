"""The vectors of a worker: collections over its shards, their indexes, and searches in them."""
