"""The configuration file in Prometheus's format: reading it, and what its sections share, such as HTTP clients and
relabelling."""
