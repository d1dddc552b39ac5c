"""The page: its files, which a browser loads as they are; docs/internals/page.md."""
