"""Retention and compaction of a log."""
