"""Requests served directly: small requests of the most frequent kinds, read from the bytes of their connection and
answered without aiohttp's objects, routes and tasks. Every other request goes through aiohttp and
`coordinator.dispatch`."""
