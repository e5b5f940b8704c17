"""The log of one partition: append, read, wait."""
