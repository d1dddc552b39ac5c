"""The meaning of request and response headers: content types, request ids, origins and hosts of web pages."""
