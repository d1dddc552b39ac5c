"""The store of one shard: RocksDB behind the face of rows, and the detection of damage to its files."""
