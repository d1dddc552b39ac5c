"""The time series of a shard: their index, and their samples in journal, head and blocks."""
