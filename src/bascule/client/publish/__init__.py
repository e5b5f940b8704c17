"""Publishing: partitions, windows of messages in flight, retries, idempotence."""
