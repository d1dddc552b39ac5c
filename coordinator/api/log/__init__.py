"""HTTP of the log area: appends, reads and cursors."""
