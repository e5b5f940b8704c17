"""Spark's failures in our own words."""
