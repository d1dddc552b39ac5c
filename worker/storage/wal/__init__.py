"""The write-ahead log of a worker process: files of records, the list of these files, and reading them at a start."""
