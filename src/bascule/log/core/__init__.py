"""The decisions of a partition log: index lookups, retention, compaction, leader epochs."""
