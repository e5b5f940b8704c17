"""Talking: bytes and sockets. Knows nothing of streams."""
