"""Search in the values of the log: a text pattern, line by line, and a condition on values that are JSON."""
