"""What a worker has on the disk: the rows of each shard's store, and the write-ahead log of the process."""
