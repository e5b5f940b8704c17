"""Segment files, their indexes, and reads across them."""
