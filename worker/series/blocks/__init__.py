"""Samples in compressed files: writing, reading, merging and dropping them."""
