"""Backup and restore: views of the data directory at one moment, and the copies of them elsewhere."""
