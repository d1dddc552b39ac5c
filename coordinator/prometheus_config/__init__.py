"""The configuration file in Prometheus's format, and the parts that its sections have in common."""
