"""PromQL on a worker: sub-queries evaluated over the series of its shards."""
