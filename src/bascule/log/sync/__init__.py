"""Group commit: syncs logs to disk, and wakes the callers that wait for it."""
