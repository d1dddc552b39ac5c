"""The coordinator process: the HTTP interface, and the control plane."""

from shared import kernel_cache

kernel_cache.use()
