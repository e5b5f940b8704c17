"""Memory of batches between NATS and the log."""
