"""The index of a shard's series, which finds them by their labels."""
