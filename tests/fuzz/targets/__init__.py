"""The targets: each module has its own in `TARGETS`."""
