"""Scraping: jobs, their targets, and the samples that are read from them."""
