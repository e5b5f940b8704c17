"""Replicated partitions: what a leader and a follower decide. Pure; the shell in `broker/replication` does what they say."""
