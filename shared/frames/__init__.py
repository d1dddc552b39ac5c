"""The layouts of samples and exemplars on the wire: a shard's part of a remote-write request, in columns."""
