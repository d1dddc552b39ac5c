"""The modules that the coordinator and the workers share."""

from shared import kernel_cache

kernel_cache.use()
