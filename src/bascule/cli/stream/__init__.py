"""Commands that create, read and write streams."""
