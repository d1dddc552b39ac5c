"""Bodies of the coordinator's requests (`…Body`) and of the workers' replies (`…Reply`): one module for each area."""
