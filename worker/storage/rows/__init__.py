"""The store of one shard: RocksDB behind the interface of rows, and the detection of damage to its files."""
