"""Remote read: from a request to raw samples, and from these to messages of samples or streamed chunks."""
