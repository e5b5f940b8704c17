"""Opens a log after a stop or a crash, and truncates it."""
