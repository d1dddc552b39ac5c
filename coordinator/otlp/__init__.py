"""OTLP: OpenTelemetry's metrics and log records, translated to what the areas of metrics and of the log store."""
