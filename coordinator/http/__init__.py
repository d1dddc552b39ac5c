"""The HTTP layer: connections, request bodies, responses and error responses. Endpoints are in
`coordinator.api`, headers in `coordinator.headers`, limits in `coordinator.limits`."""
