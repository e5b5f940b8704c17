"""Messages from NATS to record batches, and the acks back."""
