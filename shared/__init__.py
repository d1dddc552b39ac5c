"""What coordinator and workers both need."""

from shared import kernel_cache

kernel_cache.use()
