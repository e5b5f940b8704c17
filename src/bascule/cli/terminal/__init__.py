"""Input and output of commands: option values, tables, progress bars, messages."""
