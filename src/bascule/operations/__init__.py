"""Operations on a cluster: drain, add, remove, rebalance, reassign, elect. See docs/guides/operating-a-cluster.md."""
