"""Consensus: `RaftNode.step(event) -> Effects`. docs/internals/raft.md has the rules for its shell."""
