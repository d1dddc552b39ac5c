"""OTLP: metrics and log records of OpenTelemetry, read into what the areas of metrics and of the log store."""
