"""The log of a shard: appends, gathering into runs by key, reads, and recovery after a crash."""
