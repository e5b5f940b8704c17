"""Tables that hold the latest message of each key."""
