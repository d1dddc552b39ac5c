"""The write-ahead log of a worker process: files of records, the list of the files, and reading them at a start."""
