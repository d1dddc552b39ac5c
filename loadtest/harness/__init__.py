"""What benchmarks and tests both need: a cluster of processes, bodies of remote write, series in memory."""
