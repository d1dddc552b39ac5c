"""The file formats for data of all areas: what exports write and imports read."""
