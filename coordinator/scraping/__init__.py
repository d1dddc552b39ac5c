"""Scraping: jobs, their targets, and what is read from them."""
