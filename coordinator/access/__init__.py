"""Access control: TLS, users, tokens and their roles (docs/security.md)."""
