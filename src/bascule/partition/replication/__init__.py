"""Replicated partitions on this server: what core/partition decides is done here, to logs, to the metadata and over NATS."""
