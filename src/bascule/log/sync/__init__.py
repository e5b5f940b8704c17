"""Group commit: what has reached the disk, and the callers that wait for it."""
