"""Who gets in: TLS, users, tokens and their roles (docs/security.md)."""
