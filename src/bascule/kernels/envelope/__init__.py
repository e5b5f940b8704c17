"""Publish requests, envelopes and acks, read in place."""
