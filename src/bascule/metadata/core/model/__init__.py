"""Streams, groups, ops and changes: the values that the metadata consists of."""
