"""What benchmarks and tests both need: a cluster of processes, bodies of remote write, series and queries in memory."""
