"""Delta Lake tables as files: places in folders and object stores, and the log of commits."""
