"""Values as the JSON of an answer, written straight from arrays by kernels."""
