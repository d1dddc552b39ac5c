"""The description of all endpoints: an OpenAPI document, made of short tables, and a page to read."""
