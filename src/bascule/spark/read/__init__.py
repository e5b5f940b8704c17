"""Spark's source: offsets, ranges, batches and streams."""
