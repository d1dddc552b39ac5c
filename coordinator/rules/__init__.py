"""Rules as Prometheus has them: expressions evaluated on schedule, whose results are stored or make alerts."""
