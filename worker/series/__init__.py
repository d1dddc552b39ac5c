"""The time series of a shard: their index, their samples in journal, head and blocks."""
