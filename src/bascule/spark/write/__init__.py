"""Spark's sink."""
