"""Recording and alerting rules as in Prometheus: expressions that are evaluated on schedule, whose results are stored
or become alerts."""
