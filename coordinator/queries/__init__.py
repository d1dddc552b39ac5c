"""One query in the coordinator: planned, sent to the workers, their answers merged, the result written as JSON."""
