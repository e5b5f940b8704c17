"""The client's subscriptions: bytes to messages and columns."""
