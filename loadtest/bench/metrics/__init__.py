"""Metrics side by side: Triptych, Prometheus and VictoriaMetrics under the same load, `make bench`."""
