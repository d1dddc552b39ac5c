"""The methods of a worker: one module for each area, and a table of all methods."""
