"""Consensus: the pure core, its disk format, and the driver that runs a node over NATS. See docs/internals/raft.md."""
