"""Values as the JSON of a response, written directly from arrays by kernels."""
