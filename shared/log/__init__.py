"""The parts of the log that coordinator and workers share: records as blocks of columns, record headers, key slots."""
