"""Pipelines on Spark: streams into a lake and back, each message exactly once, and the proof of it."""
