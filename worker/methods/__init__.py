"""The methods that a worker answers: one module for each area, and a table of all of them."""
