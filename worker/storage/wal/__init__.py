"""The write-ahead log of a worker process: files of records, the list of them, and reading them at a start."""
