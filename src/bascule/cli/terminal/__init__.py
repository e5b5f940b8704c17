"""Input and output of a command: values as typed, tables, progress bars, messages."""
