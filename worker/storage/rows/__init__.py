"""The store of one shard: RocksDB behind one face, and what is known of damage to its files."""
