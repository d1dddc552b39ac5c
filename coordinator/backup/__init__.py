"""Backup and restore: views of the data directory at one moment, and their copies elsewhere."""
