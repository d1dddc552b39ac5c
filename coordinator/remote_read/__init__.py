"""Remote read: from a request to raw samples, and from these to sample messages or streamed chunks."""
