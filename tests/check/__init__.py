"""Damage to every kind of file of a data directory, and what `triptych check` says of it."""
