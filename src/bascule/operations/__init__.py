"""What people who run a cluster ask of it: drain, add, remove, rebalance, reassign, elect. See docs/guides/operating-a-cluster.md."""
