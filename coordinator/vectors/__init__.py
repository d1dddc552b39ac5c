"""Vectors: the collections, writes to shards, searches of all shards, and their answers merged."""
