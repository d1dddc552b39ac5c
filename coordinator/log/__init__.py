"""The log: numbers for records, appends to shards, how far readers may read, and recovery after a start."""
