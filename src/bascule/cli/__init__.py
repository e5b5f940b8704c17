"""The command line: one folder per family of commands."""
