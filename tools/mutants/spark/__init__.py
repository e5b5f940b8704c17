"""Planted bugs of Spark's source and sink."""
