"""Data of all areas in the formats of files: what exports write and imports read."""
