"""PromQL on a worker: evaluates sub-queries over the series of its shards."""
