"""Builds a broker from its parts, and runs it."""
