"""The log of a shard: appends, gathering into runs by key, reads, and what a crash leaves."""
