"""Layouts of samples and exemplars on the wire: a shard's part of a remote-write request as columns."""
