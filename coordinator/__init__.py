"""The coordinator: the HTTP process, which parses requests, calls the workers and merges their replies."""
