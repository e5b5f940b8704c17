"""The replicated state of a cluster: streams, partitions, consumer groups. See docs/internals/metadata.md."""
