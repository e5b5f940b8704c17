"""Consensus: `Node.step(event) -> Effects`. See docs/internals/raft.md for the rules a shell has to keep."""
