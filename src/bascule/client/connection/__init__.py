"""Connections to the brokers of a cluster: metadata, leaders, retries, errors, wire messages."""
