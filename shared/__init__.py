"""The modules that the coordinator and the workers share."""
