"""Requests of the coordinator and replies of the workers: one module for each area."""
