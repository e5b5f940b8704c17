"""Decisions, pure: no files, sockets, clocks, threads or randomness. Time and seeds are arguments."""
