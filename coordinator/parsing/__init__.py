"""Parses bodies and texts for several areas, by kernels where they are large, and decompresses them."""
