"""HTTP as the service speaks it: connections, request bodies, responses and their errors. Endpoints are in
`coordinator.api`, headers in `coordinator.headers`, limits in `coordinator.limits`."""
