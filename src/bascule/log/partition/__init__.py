"""One partition's log: append, read, wait."""
