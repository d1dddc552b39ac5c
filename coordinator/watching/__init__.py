"""The service's own metrics, and how they are stored in the service itself."""
