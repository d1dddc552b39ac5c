"""Which series a shard has, and finding them by their labels."""
