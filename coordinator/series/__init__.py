"""The way of samples and metadata from a remote-write request to the shards."""
