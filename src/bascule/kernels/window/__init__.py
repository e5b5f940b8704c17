"""The client's publish window: messages in flight and their acks."""
